package redis

import (
	"fmt"
	"runtime"
	"strings"
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

// TestUsualRequestsEndAtTheHead of their scripts, which create no functions: a grant, a
// new waiter, a release, and a release to a new waiter. The head leaves anything else
// unchanged to the rest, which is replaced by an error here.
func TestUsualRequestsEndAtTheHead(t *testing.T) {
	t.Parallel()
	const rest, left, released = "\nreturn redis.error_reply('ERR the rest')", "left", "released"
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	contend := newLockScript(literal(lua("clock", "contend_one")() + rest))
	release := newLockScript(literal(lua("release_free", "clock", "release_push")() + rest))
	k := keysOf("x")
	// run repeats a request that is left to the rest because it checks the index, as one of 64.
	run := func(s *script, want string, args ...string) {
		t.Helper()
		got := ""
		for i := 0; i < 20 && got != want; i++ {
			m, err := s.runOne(t.Context(), operator, batch{keys: []string{"x"}, args: args}).ToMessage()
			r, wrong := parseReply(m)
			switch {
			case err != nil && strings.Contains(err.Error(), "the rest"):
				got = left
				continue
			case s == release && err == nil:
				got = released
			case wrong == nil:
				got = r.status
			}
			break
		}
		if got != want {
			t.Errorf("the head answers %q, want %q", got, want)
		}
	}
	acquire := func(owner, want string) { t.Helper(); run(contend, want, enqueue, "channel", owner, "30000") }
	acquire("a", statusGranted)
	acquire("b", statusWaiting)
	acquire("c", statusWaiting)
	acquire("a", left)
	run(release, released, "channel", "a")
	run(release, released, "channel", "b")
	run(release, released, "channel", "c")

	acquire("a", statusGranted)
	acquire("b", statusWaiting)
	mustDo(t, operator, "SET", k.counter, "2000000000000000") // above the clock
	acquire("c", left)
	mustDo(t, operator, "ZADD", k.queue, "1", "channel old") // a place that can have heartbeats
	run(release, left, "channel", "a")
	if drawn := number(t, operator, "GET", k.counter); drawn != 2000000000000000 {
		t.Errorf("the head left the counter at %d", drawn)
	}
	if number(t, operator, "EXISTS", k.lock) != 1 {
		t.Error("the lock is gone")
	}
}
