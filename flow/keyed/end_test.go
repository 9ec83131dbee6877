package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// TestPanicsAreReported to the submitter, and the key and the executor continue.
func TestPanicsAreReported(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1})
		broken := errors.New("broken")
		for name, task := range map[string]func(context.Context) error{
			"panic":  func(context.Context) error { panic(broken) },
			"goexit": func(context.Context) error { runtime.Goexit(); return nil },
		} {
			reported := make(chan error, 1)
			ok(t, x.Go(t.Context(), "k", task, func(err error) { reported <- err }))
			check := func(where string, err error) {
				var p *keyed.PanicError
				if !errors.As(err, &p) || p.Key != "k" || !strings.Contains(string(p.Stack), "TestPanicsAreReported") {
					t.Errorf("%s, %s: %v", name, where, err)
				}
				wantKind(t, err, interlock.Uncertain, interlock.ErrUncertain)
				if name == "panic" && !errors.Is(err, broken) {
					t.Errorf("%s: %v", where, err)
				}
			}
			check("go", <-reported)
			release := stuck(t, x, "k")
			queued := make(chan error)
			go func() { queued <- x.Do(t.Context(), "k", task) }()
			synctest.Wait()
			release()
			check("queued do", <-queued)
			// A key that became ready meanwhile does not wait for another submitter.
			release = stuck(t, x, "k")
			other := make(chan error, 1)
			ok(t, x.Go(t.Context(), "k", task, nil))
			ok(t, x.Go(t.Context(), "other", nothing, func(err error) { other <- err }))
			release()
			ok(t, <-other)
			if name == "panic" {
				synctest.Wait()
				check("do", x.Do(t.Context(), "k", task))
			} else {
				// It may be the caller's goroutine that ends: the executor goes on.
				var caller sync.WaitGroup
				caller.Go(func() { _ = x.Do(t.Context(), "k", task) })
				caller.Wait()
			}
			ok(t, x.Do(t.Context(), "k", nothing))
		}
	})
}

// TestReentrance: a Do inside a task is rejected, whatever the key; a Go is not.
func TestReentrance(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: 1, Wait: true})
		below := executor(t, nil)
		var kept context.Context
		after := make(chan error, 1)
		ok(t, x.Do(t.Context(), "a", func(ctx context.Context) error {
			kept = ctx
			derived, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			for _, key := range []string{"a", "b"} {
				wantKind(t, x.Do(derived, key, nothing), interlock.Bug, interlock.ErrReentered)
			}
			wantKind(t, x.Close(ctx), interlock.Bug, interlock.ErrReentered)
			ok(t, x.Go(context.WithoutCancel(ctx), "a", nothing, func(err error) { after <- err }))
			var full *keyed.FullError // it must not wait for a place that it occupies
			if err := x.Go(ctx, "a", nothing, nil); !errors.As(err, &full) {
				t.Errorf("%v, want a FullError", err)
			}
			return below.Do(ctx, "a", func(ctx context.Context) error {
				wantKind(t, x.Do(ctx, "b", nothing), interlock.Bug, interlock.ErrReentered)
				return nil
			})
		}))
		ok(t, <-after)
		if kept.Err() == nil || kept.Value("x") != nil {
			t.Error("the task's context has not ended with it")
		}
		ok(t, x.Do(context.WithoutCancel(kept), "a", nothing)) // the task has returned
	})
}

// TestClose: accepted tasks run, later ones are rejected, and callers that wait for room get an error.
func TestClose(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1, PerKey: 1, Wait: true})
		release := stuck(t, x, "a")
		ran := 0
		count := func(context.Context) error { ran++; return nil }
		ok(t, x.Go(t.Context(), "a", count, nil))
		waiting := make(chan error, 2)
		go func() { waiting <- x.Go(t.Context(), "a", count, nil) }()
		go func() { waiting <- x.Do(t.Context(), "a", count) }()
		synctest.Wait()
		end := make(chan error, 2)
		for range 2 {
			go func() { end <- x.Close(t.Context()) }()
		}
		synctest.Wait()
		for range 2 {
			wantKind(t, <-waiting, interlock.Bug, interlock.ErrClosed)
		}
		wantKind(t, x.Do(t.Context(), "b", count), interlock.Bug, interlock.ErrClosed)
		wantKind(t, x.Go(t.Context(), "b", count, nil), interlock.Bug, interlock.ErrClosed)
		select {
		case err := <-end:
			t.Fatal("closed too early:", err)
		default:
		}
		release()
		for range 2 {
			ok(t, <-end)
		}
		if ran != 1 {
			t.Errorf("%d tasks ran, want the one that was taken", ran)
		}
	})
}

// TestCloseIsBounded: tasks that have not begun are dropped and reported in order, running ones are
// cancelled with the cause.
func TestCloseIsBounded(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		x := executor(t, &keyed.Options{Concurrency: 1})
		var cause error
		go func() {
			ok(t, x.Do(context.Background(), "a", func(ctx context.Context) error {
				inner, cancel := context.WithCancel(ctx)
				defer cancel()
				<-inner.Done()
				cause = context.Cause(ctx)
				return nil
			}))
		}()
		synctest.Wait()
		var reported []string
		for i := range 3 {
			ok(t, x.Go(t.Context(), "a", func(context.Context) error { t.Error("it ran"); return nil }, func(err error) {
				wantKind(t, err, interlock.Definite, interlock.ErrClosed)
				reported = append(reported, fmt.Sprint(i))
			}))
		}
		waiting := make(chan error, 1)
		go func() { waiting <- x.Do(t.Context(), "a", nothing) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		err := x.Close(ctx)
		wantKind(t, err, interlock.Definite, context.DeadlineExceeded)
		if took := time.Since(begun); took != 3*time.Second || !strings.Contains(fmt.Sprint(err), "1 tasks still run, 4 were dropped") {
			t.Errorf("after %v: %v", took, err)
		}
		wantKind(t, <-waiting, interlock.Definite, interlock.ErrClosed)
		ok(t, x.Close(t.Context()))
		if strings.Join(reported, "") != "012" || !errors.Is(cause, interlock.ErrClosed) {
			t.Errorf("reported %v, the context ended with %v", reported, cause)
		}
	})
}

// TestHooks: waits and depths are right.
func TestHooks(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var started []observe.KeyedStarted
		var ended []observe.KeyedEnded
		b, err := keyed.NewBatches(2, func(_ context.Context, _ string, batch []int) error {
			time.Sleep(time.Second)
			return errors.New("no")
		}, &keyed.Options{Observe: &observe.Keyed{
			Started: func(e observe.KeyedStarted) { started = append(started, e) },
			Ended:   func(e observe.KeyedEnded) { ended = append(ended, e) },
		}})
		ok(t, err)
		for i := range 4 {
			ok(t, b.Go(t.Context(), "k", i, nil))
			synctest.Wait()
		}
		closed(t, b)
		if got, want := fmt.Sprint(started), "[{k 1 0s 0} {k 2 1s 1} {k 1 2s 0}]"; got != want {
			t.Errorf("started %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(ended), "[{k 1 1s no} {k 2 1s no} {k 1 1s no}]"; got != want {
			t.Errorf("ended %s, want %s", got, want)
		}
	})
}
