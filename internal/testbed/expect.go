package testbed

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// OK ends the test if there is an error.
func OK(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// WantKind fails the test unless err has the given kind and, unless target is nil, matches it.
func WantKind(tb testing.TB, err error, kind interlock.ErrorKind, target error) {
	tb.Helper()
	if err == nil || interlock.Kind(err) != kind || target != nil && !errors.Is(err, target) {
		tb.Errorf("%v (%v), want %v, %v", err, interlock.Kind(err), kind, target)
	}
}

// Eventually waits until cond returns true, and ends the test by tb.Fatal if it does not
// within bound. It calls cond at least once, and pauses for a tenth of the time that it
// has waited, 2 to 50 ms. what names the condition in the failure: "the key is gone".
func Eventually(tb testing.TB, what string, bound time.Duration, cond func() bool) {
	tb.Helper()
	for range looks(bound) {
		if cond() {
			return
		}
	}
	tb.Fatalf("not within %v: %s", bound, what)
}

// looks yields once for each check of [Eventually]. Checks that cost processor time, such
// as handshakes, must be few, because they would slow down a server that starts.
func looks(bound time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		began := time.Now()
		for {
			waited := time.Since(began)
			if !yield(waited) || waited > bound {
				return
			}
			time.Sleep(min(max(waited/10, tick), 25*tick))
		}
	}
}

// Patience bounds the time of an immediate result, also on a busy machine.
const Patience = 3 * time.Minute

// Receive returns the next value of ch, and ends the test by tb.Fatal if there is none within
// [Patience]. what names the value in the failure: "the grant".
func Receive[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(Patience):
		tb.Fatalf("%s: nothing within %v", what, Patience)
		panic("unreachable")
	}
}

// Bounded returns the context of a short call: it ends after [Patience], and with the test.
func Bounded(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// Later runs fn concurrently. wait returns its error, and ends the test by tb.Fatal if fn
// does not return within bound.
func Later(tb testing.TB, bound time.Duration, fn func() error) (wait func() error) {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return func() error {
		tb.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(bound):
			tb.Fatalf("still running after %v", bound)
			return nil
		}
	}
}

// Brief reports whether tests of machines with one goroutine skip large worlds: under
// -short, and with the race detector, which makes them ten times slower.
func Brief() bool { return Race || testing.Short() }

// CloseAfter calls Close at the end of the test, bounded by [Patience]. An error fails the test.
func CloseAfter(tb testing.TB, c interface{ Close(context.Context) error }) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
}

// CaptureLog returns what slog.Default logs until the test ends. No other test may log meanwhile.
func CaptureLog(tb testing.TB) *bytes.Buffer {
	tb.Helper()
	var lines bytes.Buffer
	before := slog.Default()
	tb.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&lines, nil)))
	return &lines
}
