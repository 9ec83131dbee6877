package preparedtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

// Drive returns the role of a coordinator of one branch that stores its decision in a file:
// the first run begins the branch, each later one finishes it. open opens a participant of
// namespace crash whose connections use the wire. The arguments are the URL, the transaction
// and the file.
func Drive[T any](d Database[T], open func(ctx context.Context, url string, wire *crash.Wire) (driver.Preparer[T], error)) crash.Role {
	return func(ctx context.Context, at *crash.Points, args []string) error {
		var wire crash.Wire
		p, err := open(ctx, args[0], &wire)
		if err != nil {
			return err
		}
		wire.Watch(at)
		x, file := One(args[1]), args[2]
		decided, err := os.ReadFile(file)
		switch {
		case errors.Is(err, os.ErrNotExist):
			if err := begin(ctx, d, p, x, file); err != nil {
				return err
			}
		case err != nil:
			return err
		case string(decided) != committed:
			return untilDone(func() error { return p.Rollback(ctx, x) })
		}
		return untilDone(func() error { return p.Commit(ctx, x) })
	}
}

// The decisions in a file.
const (
	begun     = "begun"
	committed = "commit"
)

func begin[T any](ctx context.Context, d Database[T], p driver.Preparer[T], x driver.XID, file string) error {
	if err := write(file, begun); err != nil {
		return err
	}
	in, b, err := p.Begin(ctx, x)
	if err != nil {
		return err
	}
	if err := d.Exec(ctx, in, `insert into account values ('`+x.Transaction+`', 1)`); err != nil {
		return err
	}
	if vote, err := b.Prepare(ctx); vote != driver.VoteYes || err != nil {
		return fmt.Errorf("vote %v: %w", vote, err)
	}
	return write(file, committed)
}

// write replaces the file atomically.
func write(file, text string) error {
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// untilDone repeats Retryable errors: the server needs time to detect that a process died.
func untilDone(try func() error) (err error) {
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = try(); interlock.Kind(err) != interlock.Retryable {
			return err
		}
	}
	return err
}

// Crashes kills the process of a role made by [Drive] before and after each request of a
// branch. The next process must finish the branch as decided.
func Crashes[T any](t *testing.T, d Database[T], role string) {
	server := d.Start(t)
	b := d.OpenBank(t, server.URL(), "crash")
	var n atomic.Int64
	points := crash.Once(t, role, func(tb testing.TB) crash.Scene {
		x, file := One(fmt.Sprint("t", n.Add(1))), filepath.Join(tb.TempDir(), "decision")
		return crash.Scene{Args: []string{server.URL(), x.Transaction, file}, Want: func(tb testing.TB) {
			tb.Helper()
			decided, err := os.ReadFile(file)
			if err != nil {
				tb.Fatal(err)
			}
			want := map[string]string{begun: "0", committed: "1"}[string(decided)]
			if got := b.Text(tb, `select count(*) from account where id = '`+x.Transaction+`'`); got != want {
				tb.Errorf("decided %q: %s rows, want %s", decided, got, want)
			}
			doubts, err := b.InDoubt(context.WithoutCancel(tb.Context())) // those of other scenes, too
			if err != nil || slices.ContainsFunc(doubts, func(d driver.InDoubt) bool { return d.XID == x }) {
				tb.Errorf("decided %q: it is in doubt, %v", decided, err)
			}
		}}
	})
	if points < 10 {
		t.Errorf("only %d points", points)
	}
}
