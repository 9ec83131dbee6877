package testbed

import (
	"testing"
	"time"
)

// Eventually waits until cond holds, looking every few milliseconds, and ends
// the test by tb.Fatal if it does not within bound. It looks at least once. what
// is what was waited for, as the failure says it: "the key is gone".
func Eventually(tb testing.TB, what string, bound time.Duration, cond func() bool) {
	tb.Helper()
	for end := time.Now().Add(bound); !cond(); time.Sleep(tick) {
		if time.Now().After(end) {
			tb.Fatalf("not within %v: %s", bound, what)
		}
	}
}
