package journal_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Role{"driver": drive}) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind interlock.ErrorKind, is error) {
	t.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		t.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, is)
	}
}

// open makes a journal on a store, closed after the test.
func open(t *testing.T, store driver.Journal, o *journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.New(store, o)
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	return j
}

// due is some time.
var due = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func says(kinds ...string) []journal.Entry {
	var all []journal.Entry
	for _, k := range kinds {
		all = append(all, journal.Entry{Kind: k, Data: []byte(k)})
	}
	return all
}

func kinds(entries []journal.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Kind)
	}
	return all
}

// token is the n-th of a system whose counter started when the tests did.
func token(n int64) interlock.Token {
	t, err := interlock.NewToken(start+n, 0)
	if err != nil {
		panic(err)
	}
	return t
}

var began = time.Now()

var start = interlock.CounterAt(began)

// bubble runs a test in virtual time that begins at the present.
func bubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(began))
		test(t)
	})
}

// claim lasts until it is ended.
type claim struct {
	token interlock.Token
	ctx   context.Context
	end   context.CancelCauseFunc
}

func grant(n int64) *claim {
	c := &claim{token: token(n)}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	return c
}

func (c *claim) Name() string             { return "shard" }
func (c *claim) Owner() string            { return "tester" }
func (c *claim) Token() interlock.Token   { return c.token }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Valid() bool              { return c.ctx.Err() == nil }
func (c *claim) Remaining() time.Duration {
	if c.Valid() {
		return time.Minute
	}
	return 0
}

// slow is a store whose appends wait for a gate, and may lose their answers.
type slow struct {
	*memory.Journal

	mu     sync.Mutex
	groups []int         // sizes of the requests
	gate   chan struct{} // nil is open
	lose   int           // answers that are lost from now on
	refuse int           // requests that are refused from now on, Retryable
}

func newSlow() *slow { return &slow{Journal: memory.NewJournal()} }

func (s *slow) Append(ctx context.Context, appends []driver.Append) []error {
	s.mu.Lock()
	s.groups = append(s.groups, len(appends))
	gate, lose, refuse := s.gate, s.lose > 0, s.refuse > 0
	s.lose, s.refuse = s.lose-1, s.refuse-1
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	if refuse {
		return repeat(len(appends), &interlock.Error{Op: "append", Kind: interlock.Retryable, Err: errors.New("not now")})
	}
	errs := s.Journal.Append(ctx, appends)
	if lose {
		return repeat(len(appends), &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: errors.New("no answer")})
	}
	return errs
}

func repeat(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
