package testbed

import (
	"context"
	"testing"
	"time"
)

// Patience bounds what happens soon on a machine that is not busy.
const Patience = 20 * time.Second

// Receive returns what ch delivers, and ends the test by tb.Fatal if that is nothing within
// [Patience]. what is what was waited for, as the failure says it: "the grant".
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

// Bounded is the context of a call that returns soon: it ends after [Patience], and with the test.
func Bounded(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}
