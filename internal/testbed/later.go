package testbed

import (
	"testing"
	"time"
)

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
