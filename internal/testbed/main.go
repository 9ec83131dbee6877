package testbed

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main is the TestMain of a package without goroutine leaks. It runs the tests, stops the [Shared]
// servers, and fails if a goroutine remains after ten seconds. Some clients end theirs about a
// second after Close.
func Main(m *testing.M) {
	code := m.Run()
	endShared()
	if code == 0 {
		var err error
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if err = goleak.Find(); err == nil { // goleak retries for half a second itself
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
