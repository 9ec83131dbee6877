package testbed

import (
	"iter"
	"testing"
	"time"
)

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
