package bench

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// ttl is the lease duration of all sides: no benchmark of pairs waits for a renewal.
const ttl = 30 * time.Second

// fresh numbers the names of locks, so that none is used in two rounds.
var fresh atomic.Int64

// acquire acquires a lock for the clients of one process.
type acquire = func(ctx context.Context, name string) (token uint64, held compare.Held, err error)

// contest is a number of clients that compete for one name, or have one each.
type contest struct {
	clients   int
	processes int // 0 means one; each has its own client of the store
	hot       bool
	hold      time.Duration
	pairs     bool // latencies are of pairs
}

// side runs a contest on the processes that open creates, each with an equal number of
// clients. count adds metrics of the store, and may be nil.
func (c contest) side(name string, open func() acquire, count func() float64) compare.Side {
	processes := make([]acquire, max(1, c.processes))
	for i := range processes {
		processes[i] = open()
	}
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		number := fresh.Add(1)
		l := compare.Locks{Clients: c.clients, Hold: c.hold, Pairs: c.pairs,
			Name: func(client int) string {
				if c.hot {
					client = 0
				}
				return fmt.Sprintf("%s-%d-%d", name, number, client)
			},
			Acquire: func(ctx context.Context, client int, name string) (uint64, compare.Held, error) {
				return processes[client%len(processes)](ctx, name)
			}}
		if count == nil {
			return l.Run(ctx, window)
		}
		before := count()
		s, err := l.Run(ctx, window)
		s.Values["commands"] = (count() - before) / float64(max(1, s.Total))
		return s, err
	}}
}

// faster returns the goal that our rate is the given multiple of another side's; 0 is no goal.
func faster(than string, times float64) compare.Goal {
	return compare.Goal{Metric: compare.Rate, Against: []string{than}, Want: times}
}

// allocs returns the goal for the allocations of a side; 0 is no goal.
func allocs(side string, most float64) compare.Goal {
	return compare.Goal{Metric: compare.Allocs, Side: side, Want: most, AtMost: true}
}

// distinct returns cases with as many clients as the goals have, each with its own name, and one
// client of the store. The first of them is tried on every change.
func distinct(store, note string, server func() *testbed.Server, sides func(testing.TB, *testbed.Server, contest) []compare.Side,
	goals map[int][]compare.Goal) (cases []benchmark) {
	for _, clients := range slices.Sorted(maps.Keys(goals)) {
		cases = append(cases, benchmark{
			Case: compare.Case{Name: fmt.Sprintf("%s/distinct/%d", store, clients), Goals: goals[clients],
				Note: note + fmt.Sprintf("%d goroutines with a name each", clients)},
			smoke: len(cases) == 0,
			open:  func(tb testing.TB) []compare.Side { return sides(tb, server(), contest{clients: clients, pairs: true}) },
		})
	}
	return cases
}

// fenced returns our lock on a driver, which the lock closes.
func fenced(tb testing.TB, d driver.Fenced) acquire {
	closeAfter(tb, d.Close)
	locks, err := lock.NewFenced(d, nil)
	ok(tb, err)
	closeAfter(tb, locks.Close)
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		c, err := locks.Acquire(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		return uint64(c.Token()), c, nil
	}
}

// memoryCases measure the cost of a lock without a server.
func memoryCases(testing.TB) []benchmark {
	return []benchmark{{
		Case: compare.Case{Name: "memory/pair/1", Note: "one client, one name; no server", Window: 200 * time.Millisecond,
			Goals: []compare.Goal{allocs("", 12), {Metric: compare.P50}}},
		smoke: true,
		open: func(tb testing.TB) []compare.Side {
			c := contest{clients: 1, pairs: true}
			return []compare.Side{c.side("interlock", func() acquire { return fenced(tb, memory.NewSpace().Open(nil)) }, nil)}
		},
	}}
}

// advisory returns our lock without tokens.
func advisory(tb testing.TB, d driver.Advisory) acquire {
	closeAfter(tb, d.Close)
	locks, err := lock.NewAdvisory(d, nil)
	ok(tb, err)
	closeAfter(tb, locks.Close)
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		c, err := locks.Acquire(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		return 0, c, nil
	}
}

// idle holds 1,000 locks for a window and counts the requests to the store.
func idle(name string, lock acquire, count func() float64) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		const locks = 1000
		number := fresh.Add(1)
		before := runtime.NumGoroutine()
		var all []compare.Held
		for i := range locks {
			_, held, err := lock(ctx, fmt.Sprintf("idle-%s-%d-%d", name, number, i))
			if err != nil {
				return compare.Sample{}, err
			}
			all = append(all, held)
		}
		goroutines, counted, cpu := runtime.NumGoroutine()-before, count(), compare.ProcessorTime()
		time.Sleep(window) // the time of the measurement
		s := compare.Sample{Ops: locks, Elapsed: window, Values: map[string]float64{
			"requests/s": (count() - counted) / window.Seconds(), "goroutines": float64(goroutines),
			"processor share": (compare.ProcessorTime() - cpu).Seconds() / window.Seconds()}}
		for _, held := range all {
			if err := held.Release(ctx); err != nil {
				return s, err
			}
		}
		return s, nil
	}}
}
