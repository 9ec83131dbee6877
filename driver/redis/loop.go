package redis

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// batchSize is how many names one request of a loop covers. Larger requests delay
// other clients of the server for longer than they save.
const batchSize = 100

// never is a due time that is never reached.
const never = boottime.Instant(1<<63 - 1)

// loop calls work whenever next is due, until ctx ends; wake makes it read next
// again. Calls of work do not overlap.
func loop(ctx context.Context, wake <-chan struct{}, next func() boottime.Instant, work func(context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
			work(ctx)
		}
		timer.Reset(max(0, next().Sub(boottime.Now())))
	}
}
