package compare

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// An Op is one operation of a client. It returns how long the client waited for it.
type Op func(ctx context.Context, client int) (wait time.Duration, err error)

// Drive has clients do one operation after the other for a quarter of a window, and then for
// a window in which the operations that end are counted. Those that end later do not count,
// but how long they waited does, so that a side does not look better because some clients
// starve. Those that have not ended a minute later are canceled, or when ctx ends. Drive
// returns the first error of an operation that was not canceled.
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

// driven is what one client did.
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

// cost is what this process had used when something began.
type cost struct {
	mallocs uint64
	cpu     time.Duration
}

func startCost() cost {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return cost{memory.Mallocs, ProcessorTime()}
}

// end sets the metrics of cost for each of a number of operations.
func (c cost) end(ops int, values map[string]float64) {
	now := startCost()
	values[Allocs] = float64(now.mallocs-c.mallocs) / float64(max(1, ops))
	values[CPU] = (now.cpu - c.cpu).Seconds() / float64(max(1, ops))
}

// ProcessorTime is how much processor time this process has used.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
