package coordinator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestServeWaits: Serve returns once no call is under way any more, and the shard can be
// served again then; what is left over from before starts nothing.
func TestServeWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := idle(t, nil, nil, func(context.Context, string) error { <-hang; return nil })
		r.serve(t, 1)
		r.begin(t, "1", "call:x")
		synctest.Wait()
		r.mu.Lock()
		old := r.servers[0]
		r.mu.Unlock()
		r.claim.End(interlock.ErrReleased)
		synctest.Wait()
		select {
		case err := <-r.served:
			t.Errorf("it has returned, %v, while a call is under way", err)
		default:
		}
		close(hang)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrReleased)
		if old.take("2") != nil {
			t.Error("what has ended takes up another transaction")
		}
		r.serve(t, 2)
		r.begin(t, "3", "call:x")
		if synctest.Wait(); !r.ended(t, "1") || !r.ended(t, "3") {
			t.Error("it is not served again")
		}
	})
}

// TestEndedMeanwhile: what was found to be due, and has ended before it is looked at, is
// not driven any more.
func TestEndedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var called atomic.Int64
		r := idle(t, nil, nil, func(context.Context, string) error { called.Add(1); return nil })
		r.serve(t, 1)
		r.begin(t, "1", "call:x")
		synctest.Wait()
		r.Nudge("1")
		if synctest.Wait(); called.Load() != 1 || r.calls.driven("1") != 1 || r.holding() != 0 {
			t.Errorf("called %d times, driven %d times", called.Load(), r.calls.driven("1"))
		}
	})
}

// TestBegunHere: what is begun where it is driven is left to that, by others and by a
// look at what is due.
func TestBegunHere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := idle(t, nil, nil, func(context.Context, string) error { <-hang; return nil })
		r.serve(t, 1)
		r.begin(t, "1", "call:x")
		head, _, err := r.store.Read(t.Context(), "1", 0)
		if ok(t, err); head.Due.Before(time.Now().Add(59 * time.Second)) {
			t.Errorf("it is due in %v", time.Until(head.Due))
		}
		close(hang)
	})
}

// TestTakeOverStoreAway: a new owner whose store cannot tell what is left tells so, asks
// again in a while, and does not wait for that when its claim ends.
func TestTakeOverStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Int64
		store := away(t)
		first := idle(t, store.memory, nil, nil)
		_, err := first.Journal().Begin(t.Context(), "1", "call:x", time.Now().Add(24*time.Hour), journal.Entry{Kind: "begin"})
		ok(t, err) // which nobody finds but by taking over
		j, err := journal.New(store, &journal.Options{Shards: 1})
		ok(t, err)
		defer j.Close()
		c, err := New(j, &Options{Poll: time.Minute, Hooks: &observe.Coordinator{Failed: func(observe.CoordinatorFailed) { told.Add(1) }}})
		ok(t, err)
		p := &calls{do: func(context.Context, string) error { return nil }, drives: map[string]int{}}
		ok(t, c.Handle("call", p))
		serve := func(n int64) (*claim, chan error) {
			claim, served := grant(n), make(chan error, 1)
			go func() { served <- c.Serve(context.Background(), claim, 0) }()
			synctest.Wait()
			return claim, served
		}
		store.fail(interlock.Retryable)
		claim, served := serve(1)
		from := time.Now()
		claim.End(interlock.ErrReleased)
		wantKind(t, <-served, interlock.Definite, interlock.ErrReleased)
		if d := time.Since(from); d > time.Second || told.Load() != 1 {
			t.Errorf("it ended after %v, and reported %d failures", d, told.Load())
		}
		claim, served = serve(2)
		store.fail(0)
		time.Sleep(time.Minute + time.Second)
		if synctest.Wait(); p.driven("1") != 1 {
			t.Error("what was left is not taken up")
		}
		claim.End(interlock.ErrReleased)
		<-served
		store.fail(interlock.Bug)
		if _, served = serve(3); !errors.Is(<-served, errDown) {
			t.Error("it does not say why it cannot")
		}
	})
}

// TestShardIsLost: an owner whose epoch was passed though its claim seems to last finds
// out when it takes what is due, and ends, with what it has put off.
func TestShardIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, func(context.Context, string) error { return errDown })
		r.serve(t, 1)
		r.begin(t, "waits", "call:x")
		synctest.Wait()
		_, err := r.Journal().Own(t.Context(), grant(2), 0)
		ok(t, err)
		_, err = r.Journal().Begin(t.Context(), "due", "call:x", time.Now(), journal.Entry{Kind: "begin"})
		ok(t, err)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrStaleToken)
	})
}
