package testbed

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main is the TestMain of a package that leaves no goroutine: it runs the tests, stops the
// [Shared] servers, and fails if a goroutine is still there ten seconds later. Some clients
// end theirs about a second after Close.
func Main(m *testing.M) {
	code := m.Run()
	endShared()
	if code == 0 {
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if err = goleak.Find(); err == nil { // after half a second of its own
				break
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "the tests left goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}
