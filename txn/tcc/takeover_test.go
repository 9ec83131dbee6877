package tcc

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestCrashLoop: a branch that crashes every process that settles it makes the transaction
// a dead letter, with its decision, until an operator continues it.
func TestCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var letters txntest.Events[observe.TCCDead]
		good, bad := newVenue("good", 10), newVenue("bad", 10)
		var crash atomic.Bool
		crash.Store(true)
		bad.bad = func(c branch.Call) (before, after error) {
			if crash.Load() && c.Operation == branch.Confirm {
				<-gate
			}
			return nil, nil
		}
		o := &Options{Remind: time.Hour, Hooks: &observe.TCC{Dead: letters.Add}}
		r := serve(t, nil, 1, o, good, bad)
		_, err := r.run(t.Context(), "1", good, bad)
		ok(t, err)
		for n := int64(2); n <= 20; n++ {
			synctest.Wait()
			r = serve(t, r.store, n, o, good, bad)
		}
		out, err := r.Wait(t.Context(), "1")
		if wantKind(t, err, interlock.Uncertain, ErrDeadLetter); out.State != DeadLetter || out.Decision != Confirm || !strings.Contains(out.Halted, "taken over 10 times") ||
			!strings.Contains(err.Error(), "is halted after the decision to confirm") {
			t.Fatalf("%+v, %v", out, err)
		}
		synctest.Wait()
		dead := letters.All()
		if calls := bad.called("1/bad/confirm"); calls > 10 || len(dead) != 1 || !slices.Contains(dead[0].Branches, "bad") || dead[0].Halted != out.Halted {
			t.Errorf("%d calls, reported %+v", calls, dead)
		}
		time.Sleep(65 * time.Minute)
		if synctest.Wait(); len(letters.All()) != 2 {
			t.Errorf("reported %d times in an hour", len(letters.All()))
		}
		crash.Store(false)
		ok(t, NewOperator(r.coordinator.Journal()).Retry(t.Context(), "1", "", By{Actor: "ann", Reason: "the process has more memory now"}))
		r.coordinator.Nudge("1")
		if out, err = r.Wait(t.Context(), "1"); err != nil || out.State != Confirmed || bad.state("1") != "confirmed" || good.state("1") != "confirmed" {
			t.Errorf("%+v, %v", out, err)
		}
		close(gate)
		unscheduled(t, r.store.Journal)
	})
}

// TestNoCrashLoop: frequent changes of the owner do not halt transactions whose calls are
// answered, and the last failure of a branch is known.
func TestNoCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bad := newVenue("bad", 10)
		failed := 0
		bad.bad = func(c branch.Call) (before, after error) {
			if c.Operation == branch.Confirm {
				failed++
				return fmt.Errorf("failure %d: no route", failed), nil
			}
			return nil, nil
		}
		r := serve(t, nil, 1, nil, bad)
		_, err := r.run(t.Context(), "1", bad)
		ok(t, err)
		for n := int64(2); n <= 30; n++ {
			synctest.Wait()
			time.Sleep(10 * time.Minute)
			r.stop()
			<-r.served
			r = serve(t, r.store, n, nil, bad)
		}
		synctest.Wait()
		out, err := r.Look(t.Context(), "1")
		if ok(t, err); out.State != Confirming || len(out.Failing) != 1 || out.Failing[0].Attempts < 30 || !strings.Contains(out.Failing[0].Err, "no route") {
			t.Errorf("%d failures, %+v", failed, out)
		}
		if n := len(txntest.Records(t, r.store.Journal, "1")); n > 120 {
			t.Errorf("%d records", n)
		}
	})
}
