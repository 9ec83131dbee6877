package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestNudgeAtRest: an append while a transaction is about to rest is not missed.
func TestNudgeAtRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Poll: time.Hour}, nil)
		ok(t, r.Handle("rest", protocolFunc(func(turn *Turn) error {
			if len(turn.Entries()) > 1 {
				return turn.End(journal.Entry{Kind: "end"})
			}
			log, _, err := r.Journal().Open(t.Context(), turn.ID())
			ok(t, err)
			ok(t, log.Append(t.Context(), time.Now().Add(24*time.Hour), journal.Entry{Kind: "help"}))
			r.Nudge(turn.ID())
			return nil
		})))
		r.serve(t, 1)
		r.begin(t, "1", "rest:x")
		if synctest.Wait(); !r.ended(t, "1") {
			t.Error("it rests, though it was helped")
		}
	})
}

// TestAppendRefused: after an append that another process's append refuses, the turn
// continues at once from the new state, without a nudge.
func TestAppendRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		failed := func(e observe.CoordinatorFailed) { t.Error(e.Err) }
		r := idle(t, nil, &Options{Poll: time.Hour, Hooks: &observe.Coordinator{Failed: failed}}, nil)
		ok(t, r.Handle("race", protocolFunc(func(turn *Turn) error {
			if len(turn.Entries()) == 1 {
				log, _, err := r.Journal().Open(t.Context(), turn.ID())
				ok(t, err)
				ok(t, log.Append(t.Context(), time.Now().Add(24*time.Hour), journal.Entry{Kind: "help"}))
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serve(t, 1)
		r.begin(t, "1", "race:x")
		if synctest.Wait(); !r.ended(t, "1") {
			t.Error("it is left until it is due")
		}
	})
}

// TestReserved: a transaction that is found during another try to begin it is driven
// nonetheless, and one that may have begun is looked up.
func TestReserved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, &Options{Poll: time.Hour}, func(context.Context, string) error { return nil })
		r.serve(t, 1)
		for id, err := range map[string]error{
			"found": journal.ErrExists,
			"lost":  &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: errDown},
		} {
			reserved := r.reserve(id)
			_, err2 := r.Journal().Begin(t.Context(), id, "call:x", time.Now().Add(time.Hour), journal.Entry{Kind: "begin"})
			ok(t, err2)
			if id == "found" {
				r.Nudge(id)
			}
			reserved.admit(nil, err, nil, time.Now())
			if synctest.Wait(); !r.ended(t, id) {
				t.Errorf("%s: it waits", id)
			}
		}
		r.reserve("none").admit(nil, errDown, nil, time.Now())
		if synctest.Wait(); r.holding() != 0 {
			t.Errorf("%d are held", r.holding())
		}
	})
}

func (c *Coordinator) holding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.activeTurns
}

// waiting returns how many transactions wait to repeat a call of a target.
func (c *Coordinator) waiting(name string) int {
	g := c.acquireTarget(name)
	defer c.releaseTarget(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// TestHeldAtTakeOver: the transactions of a former owner are not all read into memory at
// once.
func TestHeldAtTakeOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := idle(t, nil, &Options{Held: 10, PerTarget: 1000}, func(context.Context, string) error { <-hang; return nil })
		other := idle(t, r.store, nil, nil)
		for i := range 250 {
			other.begin(t, fmt.Sprint(i), "call:x")
		}
		former, err := r.Journal().Own(t.Context(), grant(1), 0)
		ok(t, err)
		for left := 250; left > 0; {
			heads, err := former.Claim(t.Context(), time.Now(), time.Now().Add(time.Minute), 100)
			ok(t, err)
			left -= len(heads)
		}
		r.serve(t, 2)
		if synctest.Wait(); r.holding() != 10 {
			t.Errorf("%d in memory", r.holding())
		}
		close(hang)
		for i := range 250 {
			ok(t, r.Await(t.Context(), fmt.Sprint(i), func(context.Context) (bool, error) { return r.ended(t, fmt.Sprint(i)), nil }))
		}
	})
}

// TestCrowd: transactions that wait for a target that hangs or is down do not take all
// the room: others are driven. All of them end once the target recovers, and no false
// failures are reported.
func TestCrowd(t *testing.T) {
	for _, way := range []string{"hangs", "is down"} {
		runBubble(t, way, func(t *testing.T) {
			var sick atomic.Bool
			sick.Store(true)
			hang := make(chan struct{})
			failed := func(e observe.CoordinatorFailed) { t.Errorf("%s: %v", e.Transaction, e.Err) }
			r := idle(t, nil, &Options{Held: 20, PerTarget: 2, Hooks: &observe.Coordinator{Failed: failed}}, func(_ context.Context, id string) error {
				switch {
				case !strings.HasPrefix(id, "sick") || !sick.Load():
				case way == "hangs":
					<-hang
				default:
					return errDown
				}
				return nil
			})
			r.serve(t, 1)
			other := idle(t, r.store, nil, nil)
			for i := range 500 {
				other.begin(t, fmt.Sprint("sick ", i), "call:sick")
			}
			time.Sleep(2 * time.Minute)
			for i := range 50 {
				other.begin(t, fmt.Sprint("well ", i), "call:well")
			}
			time.Sleep(2 * time.Minute) // each poll takes as many as there is room for, the earliest first
			for i := range 50 {
				if synctest.Wait(); !r.ended(t, fmt.Sprint("well ", i)) {
					t.Fatal("a target is kept waiting by another")
				}
			}
			if n := r.holding(); n > 20 {
				t.Errorf("%d in memory", n)
			}
			if n := r.waiting("call:sick"); way == "hangs" && n != 0 {
				t.Errorf("%d wait to repeat what they have not called", n)
			}
			sick.Store(false)
			close(hang)
			time.Sleep(2 * time.Hour)
			for i := range 500 {
				if !r.ended(t, fmt.Sprint("sick ", i)) {
					t.Fatal("forgotten")
				}
			}
		})
	}
}

// TestTargetsAreForgotten: few names of healthy targets without calls are kept.
func TestTargetsAreForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, func(context.Context, string) error { return nil })
		r.serve(t, 1)
		for i := range 100 {
			r.begin(t, fmt.Sprint(i), fmt.Sprint("call:", i))
		}
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.targets) > idleTargets {
			t.Errorf("%d targets", len(r.targets))
		}
	})
}

// TestPanickingDrive: a panic of a protocol is the failure of that transaction.
func TestPanickingDrive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Value
		r := idle(t, nil, &Options{Hooks: &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { told.Store(e.Err) }}},
			func(context.Context, string) error { return nil })
		ok(t, r.Handle("odd", protocolFunc(func(*Turn) error { panic("ouch") })))
		r.serve(t, 1)
		r.begin(t, "1", "odd:x")
		synctest.Wait()
		err, _ := told.Load().(error)
		if err == nil || !strings.Contains(err.Error(), "ouch") || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v", err)
		}
		r.begin(t, "2", "call:x")
		if synctest.Wait(); !r.ended(t, "2") || r.holding() != 0 {
			t.Error("others are not driven")
		}
	})
}

// TestLoneFailures: the state of a sick target lasts from one call to the next, even if
// it is not used between them.
func TestLoneFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, func(context.Context, string) error { return nil })
		ok(t, r.Handle("lone", protocolFunc(func(turn *Turn) error {
			for range failingAfter {
				turn.Round(Task{Target: "call:x", Do: func(context.Context) error { return errDown }})
			}
			if !turn.Pause(time.Hour, "call:x") {
				return turn.Holds()
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serve(t, 1)
		r.begin(t, "1", "lone:x")
		synctest.Wait()
		r.begin(t, "2", "call:x")
		if synctest.Wait(); !r.ended(t, "1") {
			t.Error("it waits though its target is well")
		}
	})
}

// TestFlapping: a target that answers one call in eight is not called repeatedly for all
// waiting transactions, while one transaction tries it once a minute.
func TestFlapping(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int64
		r := idle(t, nil, &Options{PerTarget: 1}, func(context.Context, string) error {
			if calls.Add(1)%8 != 0 {
				return errDown
			}
			return nil
		})
		r.serve(t, 1)
		const stuck, probes = 200, 24
		for i := range stuck {
			r.begin(t, fmt.Sprint("stuck ", i), "call:x")
			synctest.Wait()
		}
		before := calls.Load()
		for i := range probes {
			r.begin(t, fmt.Sprint("probe ", i), "call:x")
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if n := calls.Load() - before; n > 3*probes {
			t.Errorf("%d calls more by %d who ask, while %d wait", n, probes, stuck)
		}
	})
}

// TestGoexit: an action that ends its goroutine has an unknown outcome, alone and among
// others. A transaction whose protocol does so is found again when it is due.
func TestGoexit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Value
		r := idle(t, nil, &Options{Hooks: &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { told.Store(e.Err) }}}, nil)
		exits := func(context.Context) error { runtime.Goexit(); return nil }
		ok(t, r.Handle("round", protocolFunc(func(turn *Turn) error {
			for _, err := range append(turn.Round(Task{Do: exits}), turn.Round(Task{Do: exits}, Task{Do: exits})...) {
				if class, _ := branch.ClassOf(err); class != branch.ClassUnknown || !errors.Is(err, errNoReturn) {
					t.Errorf("%v (%v)", err, class)
				}
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		var drives atomic.Int64
		ok(t, r.Handle("drive", protocolFunc(func(turn *Turn) error {
			if drives.Add(1) == 1 {
				runtime.Goexit()
			}
			return turn.End(journal.Entry{Kind: "end"})
		})))
		r.serve(t, 1)
		r.begin(t, "1", "round:x")
		if synctest.Wait(); !r.ended(t, "1") {
			t.Error("the calls did not end")
		}
		r.begin(t, "2", "drive:x")
		if synctest.Wait(); r.holding() != 0 || len(r.slots) != 0 {
			t.Errorf("%d are held, in %d slots", r.holding(), len(r.slots))
		}
		if err, _ := told.Load().(error); !errors.Is(err, errNoReturn) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("reported %v", err)
		}
		time.Sleep(2 * time.Minute)
		if synctest.Wait(); !r.ended(t, "2") {
			t.Error("it is never driven again")
		}
	})
}
