package coordinator

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestHungCall: a call that does not return when its context ends keeps its shard for
// Options.Drain, and no longer; another owner goes on, and what the call comes to at last
// is not recorded.
func TestHungCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang, calls := make(chan struct{}), 0
		var hung []observe.CoordinatorHung
		o := &Options{Drain: 5 * time.Second, Hooks: &observe.Coordinator{Hung: func(e observe.CoordinatorHung) { hung = append(hung, e) }}}
		r := idle(t, nil, o, func(context.Context, string) error {
			if calls++; calls == 1 {
				<-hang
			}
			return nil
		})
		r.serve(t, 1)
		r.begin(t, "1", "call:x")
		synctest.Wait()
		from := time.Now()
		r.stop() // the claim lasts
		wantKind(t, <-r.served, interlock.Definite, context.Canceled)
		if d := time.Since(from); d != 5*time.Second || len(hung) != 1 || hung[0].Transaction != "1" || hung[0].After != 5*time.Second {
			t.Errorf("it was let go after %v, told %+v", d, hung)
		}
		before := r.recordsOf(t, "1")
		close(hang)
		if synctest.Wait(); r.recordsOf(t, "1") != before || r.holding() != 0 {
			t.Errorf("what has returned late is recorded: %d records, %d held", r.recordsOf(t, "1"), r.holding())
		}
		r.serve(t, 2)
		if synctest.Wait(); !r.ended(t, "1") || calls != 2 {
			t.Errorf("%d calls, and it has not ended", calls)
		}
	})
}

// TestForeign: what this process does not know the type of is not read, takes no room and
// is no failure; it is counted as long as it is there.
func TestForeign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var found atomic.Int32
		o := &Options{Held: 1, Hooks: &observe.Coordinator{
			Foreign: func(observe.CoordinatorForeign) { found.Add(1) },
			Failed:  func(e observe.CoordinatorFailed) { t.Errorf("told %+v", e) },
		}}
		r := idle(t, nil, o, func(context.Context, string) error { return nil })
		for _, id := range []string{"a", "b", "c"} {
			_, err := r.Journal().Begin(t.Context(), id, "other:x", time.Now(), journal.Entry{Kind: "begin"})
			ok(t, err)
		}
		r.serve(t, 1)
		r.begin(t, "1", "call:x")
		if synctest.Wait(); !r.ended(t, "1") {
			t.Error("what this process knows has to wait")
		}
		if n := r.Foreign(); n["other:x"] != 3 || len(n) != 1 || found.Load() != 3 {
			t.Errorf("%v, reported %d", n, found.Load())
		}
		time.Sleep(10 * time.Minute)
		if synctest.Wait(); found.Load() < 15 || found.Load() > 45 {
			t.Errorf("reported %d times in ten minutes", found.Load())
		}
		if n := r.Foreign(); n["other:x"] != 3 {
			t.Error(n)
		}
	})
}
