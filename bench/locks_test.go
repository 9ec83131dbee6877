package bench

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
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

// fresh numbers names and messages, so that none is used in two rounds.
var fresh atomic.Int64

// faster returns the goal that our rate is the given multiple of another side's; 0 is no goal.
func faster(than string, times float64) compare.Goal {
	return compare.Goal{Metric: compare.Rate, Against: []string{than}, Want: times}
}

// allocs returns the goal for the allocations of a side; 0 is no goal.
func allocs(side string, most float64) compare.Goal {
	return compare.Goal{Metric: compare.Allocs, Side: side, Want: most, AtMost: true}
}

// lazily returns a server that starts when it is first used.
func lazily(tb testing.TB, start func(tb testing.TB, extra ...string) *testbed.Server, extra ...string) func() *testbed.Server {
	return sync.OnceValue(func() *testbed.Server { return start(tb, extra...) })
}

// distinct returns cases with as many clients as the goals have, each with its own name, and one
// client of the store. The first of them is tried on every change.
func distinct[S any](store, note string, servers func() S, sides func(tb testing.TB, servers S, l compare.Locks) []compare.Side,
	goals map[int][]compare.Goal) (cases []benchmark) {
	for _, clients := range slices.Sorted(maps.Keys(goals)) {
		cases = append(cases, benchmark{
			Case: compare.Case{Name: fmt.Sprintf("%s/distinct/%d", store, clients), Goals: goals[clients],
				Note: note + fmt.Sprintf("%d goroutines with a name each", clients)},
			smoke: len(cases) == 0,
			open: func(tb testing.TB) []compare.Side {
				return sides(tb, servers(), compare.Locks{Clients: clients, Pairs: true})
			},
		})
	}
	return cases
}

// fenced returns our lock on a driver, for each process.
func fenced(tb testing.TB, open func() (driver.Fenced, error)) func() compare.Acquire {
	return func() compare.Acquire {
		d, err := open()
		ok(tb, err)
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
}

// memoryCases measure the cost of a lock without a server.
func memoryCases(testing.TB) []benchmark {
	return []benchmark{{
		Case: compare.Case{Name: "memory/pair/1", Note: "one client, one name; no server", Window: 200 * time.Millisecond,
			Goals: []compare.Goal{allocs("", 12), {Metric: compare.P50}}},
		smoke: true,
		open: func(tb testing.TB) []compare.Side {
			ours := fenced(tb, func() (driver.Fenced, error) { return memory.NewSpace().Open(nil), nil })
			return []compare.Side{compare.Locks{Clients: 1, Pairs: true}.Side("interlock", ours)}
		},
	}}
}

// idle holds 1,000 locks for a window and counts the requests to the store.
func idle(name string, acquire compare.Acquire, count func() float64) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		ctx, cancel := context.WithTimeout(ctx, window+time.Minute)
		defer cancel()
		const locks = 1000
		before := runtime.NumGoroutine()
		var all []compare.Held
		for range locks {
			_, held, err := acquire(ctx, fmt.Sprintf("idle-%s-%d", name, fresh.Add(1)))
			if err != nil {
				return compare.Sample{}, err
			}
			all = append(all, held)
		}
		goroutines, counted, meter := runtime.NumGoroutine()-before, count(), compare.Start()
		time.Sleep(window) // the time of the measurement
		s := meter.Sample(locks)
		s.Values["requests/s"], s.Values["goroutines"] = (count()-counted)/window.Seconds(), float64(goroutines)
		s.Values["processor share"] = s.Values[compare.CPU] * locks / window.Seconds()
		for _, held := range all {
			if err := held.Release(ctx); err != nil {
				return s, err
			}
		}
		return s, nil
	}}
}
