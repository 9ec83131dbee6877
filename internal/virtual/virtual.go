// Package virtual runs tests in virtual time.
package virtual

import (
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test]. With the race detector the process uses one processor
// meanwhile. The runtime of Go 1.26 gives all timers of a bubble one context of the race
// detector, and runs a timer that is due when it is set on the thread that sets it. If
// another thread runs a timer of the bubble at that moment, the race detector crashes.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	enter()
	defer leave()
	synctest.Test(t, test)
}
