package redis

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// batchSize is how many names one request of a loop covers. More would keep the
// server from others for longer than it saves.
const batchSize = 100

// never is a due time that does not come.
const never = boottime.Instant(1<<63 - 1)

// loop calls work whenever next is due, until ctx ends; wake makes it look again
// when that is. work is not called twice at once.
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
