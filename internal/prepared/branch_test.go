package prepared

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// session records how it was ended.
type session struct {
	changed bool
	err     error // of Mark
	ends    []string
}

func (s *session) end(how string) error               { s.ends = append(s.ends, how); return nil }
func (s *session) Mark(context.Context) (bool, error) { return s.changed, s.err }
func (s *session) EndUnchanged(context.Context) error { return s.end("unchanged") }
func (s *session) CommitOne(context.Context) error    { return s.end("commit") }
func (s *session) Rollback(ctx context.Context) error { return s.end("rollback") }
func (s *session) Prepare(context.Context) (driver.Vote, error) {
	return driver.VoteYes, s.end("prepare")
}

func TestBranchEndsItsSessionOnce(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	noMark := errors.New("no mark")
	prepare := func(ctx context.Context, b *Branch) error { _, err := b.Prepare(ctx); return err }
	for want, tt := range map[string]struct {
		session session
		do      func(context.Context, *Branch) error
		ctx     context.Context
		fails   bool
	}{
		"prepare":   {session{changed: true}, prepare, t.Context(), false},
		"unchanged": {session{}, prepare, t.Context(), false},
		"rollback":  {session{err: noMark}, prepare, t.Context(), true},
		"commit":    {session{}, func(ctx context.Context, b *Branch) error { return b.CommitOne(ctx) }, t.Context(), false},
	} {
		b := Space{Driver: "x"}.NewBranch(driver.XID{Transaction: "t", Branch: "b"}, &tt.session)
		if err := tt.do(tt.ctx, b); (err != nil) != tt.fails {
			t.Errorf("%s: %v", want, err)
		}
		if err := b.Abandon(ended); err != nil {
			t.Errorf("%s: abandoned after it: %v", want, err)
		}
		if err := b.CommitOne(t.Context()); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: committed after it: %v", want, err)
		}
		if !slices.Equal(tt.session.ends, []string{want}) {
			t.Errorf("%s: ended by %q", want, tt.session.ends)
		}
	}
}

func TestCommitAfterTheContextRollsBack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &session{changed: true}
	err := Space{Driver: "x"}.NewBranch(driver.XID{}, s).CommitOne(ctx)
	if interlock.Kind(err) != interlock.Definite || !slices.Equal(s.ends, []string{"rollback"}) {
		t.Errorf("%v, ended by %q", err, s.ends)
	}
}
