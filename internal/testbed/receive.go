package testbed

import (
	"context"
	"testing"
	"time"
)

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
