package compare

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Op is one operation of a client.
type Op func(ctx context.Context, client int) error

// Clients returns a side whose clients run operations in sequence, by [Drive]. check returns the
// violations of a round with that number of operations; it may be nil.
func Clients(name string, clients int, op Op, check func(total int) []string) Side {
	return Side{Name: name, Run: func(ctx context.Context, window time.Duration) (Sample, error) {
		s, err := Drive(ctx, clients, window, op)
		if check != nil {
			s.Violations = check(s.Total)
		}
		return s, err
	}}
}

// Drive has clients run operations in sequence for a quarter of a window, and then for a
// window in which completed operations are counted. Later ones do not count, but their
// waits do, so that a side does not look better because some clients starve. Drive cancels
// operations that are still running a minute later, or when ctx ends. It returns the first
// error of an operation that was not canceled.
func Drive(ctx context.Context, clients int, window time.Duration, op Op) (Sample, error) {
	return drive(ctx, clients, window, func(ctx context.Context, client int) (time.Duration, error) {
		began := time.Now()
		err := op(ctx, client)
		return time.Since(began), err
	})
}

// drive is Drive for operations that return how long the client waited.
func drive(ctx context.Context, clients int, window time.Duration, op timed) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, window/4+window+time.Minute)
	defer cancel()
	driven := make([]driven, clients)
	meter := Start()
	begin := time.Now().Add(window / 4)
	end := begin.Add(window)
	var work sync.WaitGroup
	for i := range driven {
		driven[i].waits = make([]time.Duration, 0, 4096)
		work.Go(func() { driven[i].run(ctx, i, begin, end, op) })
	}
	work.Wait()
	ops, total := 0, 0
	for _, d := range driven {
		ops, total = ops+d.ops, total+d.total
	}
	s := meter.Sample(total)
	s.Ops, s.Elapsed = ops, window
	for _, d := range driven {
		if d.err != nil {
			return s, d.err
		}
		s.PerClient = append(s.PerClient, d.ops)
		s.Waits = append(s.Waits, d.waits...)
	}
	return s, nil
}

type timed func(ctx context.Context, client int) (wait time.Duration, err error)

// driven is the work of one client.
type driven struct {
	ops, total int
	waits      []time.Duration // of those that ended after the begin of the window
	err        error
}

func (d *driven) run(ctx context.Context, client int, begin, end time.Time, op timed) {
	for time.Now().Before(end) {
		wait, err := op(ctx, client)
		d.total++
		ended := time.Now()
		if ended.After(begin) {
			d.waits = append(d.waits, wait)
		}
		if err != nil {
			if ctx.Err() == nil {
				d.err = fmt.Errorf("client %d: %w", client, err)
			}
			return
		}
		if ended.After(begin) && !ended.After(end) {
			d.ops++
		}
	}
}
