package testbed

import (
	"context"
	"testing"
)

// CloseAfter calls Close at the end of the test, bounded by [Patience]. An error fails the test.
func CloseAfter(tb testing.TB, c interface{ Close(context.Context) error }) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
}
