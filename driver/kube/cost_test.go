package kube

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testUncontendedCostsTwoRequests, token included, once the name is known.
func testUncontendedCostsTwoRequests(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "n", "first")
	s.release(d, "n", "first")
	before := s.leases.n.Load()
	const rounds = 50
	for i := range rounds {
		s.acquire(d, "n", fmt.Sprint(i))
		s.release(d, "n", fmt.Sprint(i))
	}
	if got := s.leases.n.Load() - before; got != 2*rounds {
		s.Fatalf("%d requests for %d acquires and releases", got, rounds)
	}
}

// testFirstContactCosts: two reads for old locks, and for a new Lease the revision
// of its base.
func testFirstContactCosts(s *scene) {
	d, other := s.open(Options{}), s.open(Options{})
	for _, c := range []struct {
		d    *Driver
		want int64
	}{{d, 4}, {other, 3}} {
		before := s.leases.n.Load()
		s.acquire(c.d, "n", "o")
		if got := s.leases.n.Load() - before; got != c.want {
			s.Fatalf("%d requests for the first acquire, want %d", got, c.want)
		}
		s.release(c.d, "n", "o")
		s.sees(other, "n", "the other sees the release", func(s sight) bool { return s.exists() && s.holder() == "" })
	}
}

func testRefusalCostsOneRequest(s *scene) {
	d := s.open(Options{})
	s.acquire(d, "n", "holder")
	before := s.leases.n.Load()
	_, err := d.Acquire(s.Context(), driver.Request{Name: "n", Owner: "late", NoWait: true})
	if !errors.Is(err, interlock.ErrHeld) {
		s.Fatal(err)
	}
	s.release(d, "n", "late")
	s.release(d, "n", "nobody")
	if got := s.leases.n.Load() - before; got != 1 {
		s.Fatalf("%d requests for a refusal", got)
	}
}

// testWaitersCostNoRequests while the holder is live: only its renewals are
// counted, at most one in a second.
func testWaitersCostNoRequests(s *scene) {
	holding, d := s.open(Options{TTL: suiteTTL}), s.open(Options{TTL: suiteTTL})
	s.acquire(holding, "n", "holder")
	for i := range 10 {
		s.queue(d, "n", fmt.Sprint("waiter ", i))
	}
	before, begun := s.leases.n.Load(), time.Now()
	time.Sleep(suiteTTL) // a time without requests must pass
	got, looked := s.leases.n.Load()-before, time.Since(begun)
	if got > int64(looked/(suiteTTL/3))+1 {
		s.Fatalf("%d requests in %v of one holder and ten waiters", got, looked)
	}
	testbed.Eventually(s, "renewals are counted", patience, func() bool { return s.leases.n.Load()-before >= 2 })
}

// testHandOverIsPushed: from one process to another, without a heartbeat or a poll.
func testHandOverIsPushed(s *scene) {
	a, b := s.open(Options{TTL: time.Hour}), s.open(Options{TTL: time.Hour})
	a.pace.quiet, b.pace.quiet = time.Hour, time.Hour
	s.acquire(a, "n", "0")
	for i := range 20 {
		next := s.queue(b, "n", fmt.Sprint(i+1))
		s.release(a, "n", fmt.Sprint(i))
		if o := testbed.Receive(s, next, "the next holder"); o.Err != nil {
			s.Fatal(o.Err)
		}
		a, b = b, a
	}
}

// testHeldLocksHaveNoGoroutines of their own. Those of other tests come and go.
func testHeldLocksHaveNoGoroutines(s *scene) {
	d := s.open(Options{})
	before := runtime.NumGoroutine()
	const n = 100
	for i := range n {
		s.acquire(d, fmt.Sprint("n", i), "holder")
	}
	if more := runtime.NumGoroutine() - before; more > n/2 {
		s.Fatalf("%d more goroutines for %d locks", more, n)
	}
}
