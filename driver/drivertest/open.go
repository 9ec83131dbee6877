package drivertest

import (
	"context"
	"sync"
	"testing"
)

// OpenAtOnce opens and closes many drivers of one namespace at once.
func OpenAtOnce(t *testing.T, many int, open func(ctx context.Context, i int) (interface{ Close(context.Context) error }, error)) {
	t.Helper()
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			<-start
			d, err := open(t.Context(), i)
			if err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			_ = d.Close(t.Context()) // always nil
		})
	}
	close(start)
	all.Wait()
}
