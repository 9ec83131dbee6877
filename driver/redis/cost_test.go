package redis

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// One process waits for many names: heartbeats are batched, and each name is still
// handed over.
func TestManyWaitersShareHeartbeats(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	holder, waiter := openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	const names = 2*batchSize + 50
	owners, waiting := make([]string, names), make([]<-chan outcome, names)
	for i := range names {
		owners[i], _ = take(t, holder, fmt.Sprint("n/", i))
		waiting[i] = await(t, waiter, fmt.Sprint("n/", i))
	}
	before, began := calls(t, operator), time.Now()
	testbed.Eventually(t, "four rounds of heartbeats", bound, func() bool { return since(t, operator, before)["evalsha"] >= 4*3 })
	took := time.Since(began)
	spent := since(t, operator, before)["evalsha"]
	t.Logf("%d waiters, %d requests in %v", names, spent, took.Round(time.Millisecond))
	if most := int(took/heartbeat+2) * 2 * 3; spent > most {
		t.Errorf("%d requests in %v, want at most %d", spent, took, most)
	}
	for i := range names {
		release(t, holder, fmt.Sprint("n/", i), owners[i])
		release(t, waiter, fmt.Sprint("n/", i), receive(t, waiting[i], bound).owner)
	}
}

// The number of goroutines does not depend on the number of locks. Not
// parallel: it counts those of the whole process.
func TestGoroutinesDoNotGrowWithLocks(t *testing.T) {
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), nil)
	take(t, d, "first")
	before := runtime.NumGoroutine()
	for i := range 300 {
		take(t, d, fmt.Sprint("n/", i))
	}
	what := fmt.Sprintf("%d goroutines with 300 locks, as with one", before)
	testbed.Eventually(t, what, bound, func() bool { return runtime.NumGoroutine() <= before })
}

func BenchmarkUncontended(b *testing.B) {
	server := testbed.Redis(b)
	d := openOn(b, server.Addr(), nil)
	for _, parallel := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			b.SetParallelism((parallel + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				name := "n/" + newOwner()
				for pb.Next() {
					owner, _ := take(b, d, name)
					release(b, d, name, owner)
				}
			})
		})
	}
}

func BenchmarkHandOver(b *testing.B) {
	server := testbed.Redis(b)
	x, y := openOn(b, server.Addr(), nil), openOn(b, server.Addr(), nil)
	owner, _ := take(b, x, "hot")
	for b.Loop() {
		x, y = y, x
		next := await(b, x, "hot")
		release(b, y, "hot", owner)
		owner = receive(b, next, bound).owner
	}
}
