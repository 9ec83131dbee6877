package lock_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// TestSweeps: one of two processes calls every sweep in each interval. A sweep that fails is
// reported, the others are still called, and either process goes on. After Close it is the
// other one.
func TestSweeps(t *testing.T) {
	inBubble(t, func(b *bench) {
		failure := errors.New("the sweep failed")
		var reported, failing atomic.Int64
		options := &lock.Options{Hooks: &observe.Lock{Log: observe.Silent, Restarting: func(e observe.LockRestarting) {
			if errors.Is(e.Err, failure) {
				reported.Add(1)
			}
		}}}
		calls := map[string]*atomic.Int64{"first": {}, "second": {}}
		start := func(process string) *lock.Running {
			locks, _ := b.process(options)
			return locks.Start(name, lock.Every(time.Minute,
				func(context.Context) error {
					if failing.Add(1) == 3 {
						return failure
					}
					return nil
				},
				func(context.Context) error { calls[process].Add(1); return nil }))
		}
		first := start("first")
		time.Sleep(time.Second)
		second := start("second")
		time.Sleep(10 * time.Minute)
		if n := calls["first"].Load() + calls["second"].Load(); n < 10 || n > 12 || reported.Load() != 1 {
			t.Errorf("%d calls, %d failures reported; want about 11 calls, one failure", n, reported.Load())
		}
		testbed.OK(t, first.Close(b.Context()))
		before := calls["second"].Load()
		time.Sleep(5 * time.Minute)
		if n := calls["second"].Load() - before; n < 4 || n > 6 {
			t.Errorf("%d calls in the second process; want about 5", n)
		}
		testbed.OK(t, second.Close(b.Context()))
	})
}

// TestStartEnds: Close returns the error of work that a repetition cannot help, or that ended its
// goroutine.
func TestStartEnds(t *testing.T) {
	inBubble(t, func(b *bench) {
		locks, _ := b.process(nil)
		var bug error = &interlock.Error{Op: "test", Kind: interlock.Bug, Err: errors.New("a bug")}
		for _, want := range []error{bug, failure.ErrNoReturn} {
			work := locks.Start(name, func(context.Context, interlock.Claim) error {
				if want != bug {
					runtime.Goexit()
				}
				return bug
			})
			<-work.Ended()
			if err := work.Close(b.Context()); !errors.Is(err, want) {
				t.Errorf("Close returned %v; want %v", err, want)
			}
		}
	})
}
