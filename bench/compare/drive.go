package compare

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Op is one operation of a client. It returns how long the client waited for it.
type Op func(ctx context.Context, client int) (wait time.Duration, err error)

// Drive has clients run operations in sequence for a quarter of a window, and then for a
// window in which completed operations are counted. Later ones do not count, but their
// waits do, so that a side does not look better because some clients starve. Drive cancels
// operations that are still running a minute later, or when ctx ends. It returns the first
// error of an operation that was not canceled.
func Drive(ctx context.Context, clients int, window time.Duration, op Op) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, window/4+window+time.Minute)
	defer cancel()
	driven := make([]driven, clients)
	cost := startCost()
	begin := time.Now().Add(window / 4)
	end := begin.Add(window)
	var work sync.WaitGroup
	for i := range driven {
		driven[i].waits = make([]time.Duration, 0, 4096)
		work.Go(func() { driven[i].run(ctx, i, begin, end, op) })
	}
	work.Wait()
	s := Sample{Elapsed: window, Values: map[string]float64{}}
	for _, d := range driven {
		if d.err != nil {
			return s, d.err
		}
		s.Ops += d.ops
		s.PerClient = append(s.PerClient, d.ops)
		s.Waits = append(s.Waits, d.waits...)
		s.Total += d.total
	}
	cost.end(s.Total, s.Values)
	return s, nil
}

// driven is the work of one client.
type driven struct {
	ops, total int
	waits      []time.Duration // of those that ended after the begin of the window
	err        error
}

func (d *driven) run(ctx context.Context, client int, begin, end time.Time, op Op) {
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

// cost is the resource usage of this process at the start of a measurement.
type cost struct {
	mallocs uint64
	cpu     time.Duration
}

func startCost() cost {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return cost{memory.Mallocs, ProcessorTime()}
}

// end sets the metrics of cost per operation.
func (c cost) end(ops int, values map[string]float64) {
	now := startCost()
	values[Allocs] = float64(now.mallocs-c.mallocs) / float64(max(1, ops))
	values[CPU] = (now.cpu - c.cpu).Seconds() / float64(max(1, ops))
}

// ProcessorTime returns the processor time of this process.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
