package lock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// TestKeepGoesOn: a lost claim, a failure of the work and a refusal of the backend end a run.
// Each is reported, and the work starts again under a larger token.
func TestKeepGoesOn(t *testing.T) {
	inBubble(t, func(b *bench) {
		var reported []error
		locks, d := b.process(&lock.Options{Hooks: &observe.Lock{Log: observe.Silent,
			Restarting: func(e observe.LockRestarting) { reported = append(reported, e.Err) }}})
		failure := &interlock.HeldError{Name: "what the work needs"}
		refusal := &interlock.Error{Op: "test", Kind: interlock.Definite, Err: errors.New("no rights")}
		var tokens []interlock.Token
		err := locks.Keep(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			tokens = append(tokens, c.Token())
			switch len(tokens) {
			case 1: // the claim is lost
				if _, _, err := d.Break(ctx, driver.Break{Name: name, Owner: c.(*lock.Claim).Owner(), Reason: "test", By: "test"}); err != nil {
					return err
				}
				<-ctx.Done()
				return context.Cause(ctx)
			case 2:
				d.mu.Lock()
				d.refuse = refusal
				d.mu.Unlock()
				go func() {
					time.Sleep(time.Second)
					d.mu.Lock()
					d.refuse = nil
					d.mu.Unlock()
				}()
				return failure
			}
			return nil
		})
		if err != nil || len(tokens) != 3 || !slices.IsSorted(tokens) {
			t.Fatalf("Keep returned %v after tokens %v; want nil after three, rising", err, tokens)
		}
		if len(reported) < 3 || !errors.Is(reported[0], interlock.ErrLost) || !errors.Is(reported[1], failure) || !errors.Is(reported[2], refusal) {
			t.Errorf("reported %v; want the loss, the failure, and the refusal", reported)
		}
	})
}

// TestKeepEnds: with its context, and at once where a repetition cannot help.
func TestKeepEnds(t *testing.T) {
	inBubble(t, func(b *bench) {
		locks, _ := b.process(&lock.Options{Hooks: &observe.Lock{Log: observe.Silent}})
		enough := errors.New("enough")
		for work, fn := range map[string]func(ctx context.Context, c interlock.Claim) error{
			"fails": func(context.Context, interlock.Claim) error { return errors.New("again") },
			"lasts": func(ctx context.Context, _ interlock.Claim) error { <-ctx.Done(); return context.Cause(ctx) },
		} {
			ctx, cancel := context.WithCancelCause(b.Context())
			time.AfterFunc(time.Minute, func() { cancel(enough) })
			if err := locks.Keep(ctx, name, fn); err != enough {
				t.Errorf("work that %s: Keep returned %v; want the cause of its context", work, err)
			}
		}
		runs := 0
		wrong := func(ctx context.Context, _ interlock.Claim) error {
			runs++
			return locks.Keep(ctx, name, func(context.Context, interlock.Claim) error { return nil })
		}
		if err := locks.Keep(b.Context(), name, wrong); !errors.Is(err, interlock.ErrReentered) || runs != 1 {
			t.Errorf("Keep within Keep: %v after %d runs; want ErrReentered after one", err, runs)
		}
		if err := locks.Keep(b.Context(), "", wrong); !errors.Is(err, interlock.ErrName) {
			t.Errorf("an invalid name: %v", err)
		}
		if n := b.residue(); n != 0 {
			t.Errorf("%d places are left in the backend", n)
		}
	})
}

// TestKeepEndsWithTheLock: Close ends the pause after a failure.
func TestKeepEndsWithTheLock(t *testing.T) {
	inBubble(t, func(b *bench) {
		locks, _ := b.process(&lock.Options{Hooks: &observe.Lock{Log: observe.Silent}})
		ended := make(chan error, 1)
		go func() {
			ended <- locks.Keep(b.Context(), name, func(context.Context, interlock.Claim) error { return errors.New("again") })
		}()
		time.Sleep(5 * time.Minute) // the pauses have grown
		testbed.OK(b, locks.Close(b.Context()))
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, interlock.ErrClosed) {
				t.Errorf("Keep returned %v", err)
			}
		default:
			t.Errorf("Keep ended after Close with %v", <-ended)
		}
	})
}

// TestKeepStandsBy: one process works, the other waits for as long as it takes and takes
// over; Options.Wait ends no Keep and is no failure.
func TestKeepStandsBy(t *testing.T) {
	inBubble(t, func(b *bench) {
		restarted := 0
		hooks := &observe.Lock{Log: observe.Silent, Restarting: func(observe.LockRestarting) { restarted++ }}
		here, _ := b.process(nil)
		there, _ := b.process(&lock.Options{Wait: time.Second, Hooks: hooks})
		first := b.acquire(here)
		took := make(chan error, 1)
		go func() {
			took <- there.Keep(b.Context(), name, func(context.Context, interlock.Claim) error { return nil })
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-took:
			t.Fatalf("Keep ended while another held the lock: %v", err)
		default:
		}
		b.release(first)
		if err := <-took; err != nil || restarted != 0 {
			t.Errorf("Keep returned %v and reported %d restarts; want nil and none", err, restarted)
		}
	})
}

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
