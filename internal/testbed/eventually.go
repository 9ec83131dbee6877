package testbed

import (
	"iter"
	"testing"
	"time"
)

// Eventually waits until cond holds, and ends the test by tb.Fatal if it does not within
// bound. It looks at least once, and after pauses of a tenth of the time that it has
// waited, 2 to 50 ms. what is what was waited for, as the failure says it: "the key is
// gone".
func Eventually(tb testing.TB, what string, bound time.Duration, cond func() bool) {
	tb.Helper()
	for range looks(bound) {
		if cond() {
			return
		}
	}
	tb.Fatalf("not within %v: %s", bound, what)
}

// looks ranges over the looks at a condition, as [Eventually] describes them. Looks that
// cost processor time, as a handshake does, would slow down a server that starts.
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
