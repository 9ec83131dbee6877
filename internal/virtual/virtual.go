// Package virtual runs tests in virtual time.
package virtual

import (
	"testing"
	"testing/synctest"
	"time"
)

// Began is when a test begins. [synctest.Test] begins in 2000, before the epoch of the
// counters that drivers make tokens from.
var Began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Test is [synctest.Test] that begins at [Began]. With the race detector the process uses one
// processor meanwhile. The runtime of Go 1.26 gives all timers of a bubble one context of the
// race detector. It runs a timer that is due when it is set on the thread that sets it. If
// another thread runs a timer of the bubble at that moment, the race detector crashes.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	enter()
	defer leave()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(Began))
		test(t)
	})
}
