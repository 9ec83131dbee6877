package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testFIFO checks that waiters are granted in the order in which they queued.
func testFIFO(s *scene) {
	const waiters = 12
	processes := []driver.Fenced{s.open(), s.open(), s.open()}
	holder := s.contender(processes[0], lockName).acquire()
	served := make(chan int, waiters)
	failed := make(chan error, waiters)
	for i := range waiters {
		c := s.contender(processes[i%len(processes)], lockName)
		done := c.start(s.Context())
		go func() {
			if err := <-done; err != nil {
				failed <- fmt.Errorf("waiter %d: %w", i, err)
				return
			}
			served <- i
			if err := c.tryRelease(patience); err != nil {
				failed <- fmt.Errorf("release of waiter %d: %w", i, err)
			}
		}()
	}
	holder.release()
	var order []int
	for range waiters {
		select {
		case i := <-served:
			order = append(order, i)
		case err := <-failed:
			s.Fatal(err)
		case <-time.After(patience):
			s.Fatalf("no waiter is granted after %v", order)
		}
	}
	if !slices.IsSorted(order) {
		s.Fatalf("served in the order %v", order)
	}
	s.mustBeEmpty(lockName)
}

// testCancelledWaiterLeavesNothing checks that a cancelled waiter leaves the queue and is
// not granted later.
func testCancelledWaiterLeavesNothing(s *scene) {
	holder := s.contender(s.open(), lockName).acquire()
	alone := len(s.backend.Residue(s.T, lockName))

	cause := errors.New("the caller gave up")
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	waiter := s.contender(s.open(), lockName)
	done := waiter.start(ctx)
	behind := s.contender(s.open(), lockName)
	behindDone := behind.start(s.Context())

	cancel(cause)
	err := s.wait(done, patience, "a cancelled waiter")
	if !errors.Is(err, cause) {
		s.Fatalf("a cancelled waiter got %v, want the cause", err)
	}
	// A waiter that asks again and again may know that each request was refused.
	s.mustBeKind(err, interlock.Uncertain, interlock.Definite)
	waiter.release()
	holder.release()
	testbed.OK(s, s.wait(behindDone, patience, "the waiter behind a cancelled one"))
	if left := s.backend.Residue(s.T, lockName); len(left) > alone {
		s.Fatalf("a cancelled waiter left something: %q", left)
	}
	behind.release()
	s.mustBeEmpty(lockName)
}

// testDeadWaiter checks that a crashed waiter at the head of the queue delays the next
// one for a bounded time.
func testDeadWaiter(s *scene) {
	holder := s.contender(s.open(), lockName).acquire()
	dying := s.open()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	dead := s.contender(dying, lockName)
	deadDone := dead.start(ctx)
	next := s.contender(s.open(), lockName)
	done := next.start(s.Context())

	s.backend.Crash(s.T, dying)
	holder.release()
	began := time.Now()
	testbed.OK(s, s.wait(done, s.DeadWaiter+patience, "the waiter behind a dead one"))
	if took := time.Since(began); took > s.DeadWaiter {
		s.Fatalf("a dead waiter cost %v, the bound is %v", took, s.DeadWaiter)
	}
	if !next.valid() {
		s.Fatal("the grant's lease had ended at its arrival")
	}
	cancel()
	s.wait(deadDone, patience, "the dead waiter's call")
	next.release()
}

// testLostPush checks that a waiter that misses a push is granted at its next heartbeat.
func testLostPush(s *scene) {
	holder := s.contender(s.open(), lockName).acquire()
	d := s.open()
	waiter := s.contender(d, lockName)
	done := waiter.start(s.Context())
	s.backend.(PushDropper).DropPushes(s.T, d)
	holder.release()
	began := time.Now()
	testbed.OK(s, s.wait(done, patience, "a waiter that missed the push"))
	if took, bound := time.Since(began), 2*s.Heartbeat+500*time.Millisecond; took > bound {
		s.Fatalf("a lost push cost %v, a heartbeat is %v", took, s.Heartbeat)
	}
	waiter.release()
	s.mustBeEmpty(lockName)
}

// testTokensOverHandOvers has two processes compete continuously.
func testTokensOverHandOvers(s *scene) {
	a, b := s.open(), s.open()
	var tokens []interlock.Token
	holder := s.contender(a, lockName).acquire()
	tokens = append(tokens, holder.grant.Token)
	for range cmp.Or(s.HandOvers, 1000) {
		a, b = b, a
		next := s.contender(a, lockName)
		done := next.start(s.Context(), holder)
		holder.persistRelease()
		if err := s.wait(done, patience, "the next holder"); mayRepeat(err) {
			next.persist()
		} else if err != nil {
			s.Fatal(err)
		}
		if holder = next; !holder.valid() {
			s.Fatal("a grant that has ended already")
		}
		tokens = append(tokens, holder.grant.Token)
	}
	holder.release()
	s.mustIncrease(tokens)
	s.mustBeEmpty(lockName)
}

// tokensOver checks that tokens rise over a disaster of the server: a restart on its data, or
// without data if it stores none, or on an empty data directory.
func (s *scene) tokensOver(disaster func()) {
	s.Helper()
	d := s.open()
	var tokens []interlock.Token
	for range 20 {
		c := s.contender(d, lockName).acquire()
		tokens = append(tokens, c.grant.Token)
		c.release()
	}
	disaster()
	// The same process continues, and a new one joins.
	old := s.contender(d, lockName).persist()
	tokens = append(tokens, old.grant.Token)
	old.persistRelease()
	fresh := s.contender(s.open(), lockName).persist()
	tokens = append(tokens, fresh.grant.Token)
	fresh.persistRelease()
	s.mustIncrease(tokens)
}

// testTokensStartAtTheClock checks that the counter is at least the present time and not
// far above it.
func testTokensStartAtTheClock(s *scene) {
	floor := interlock.CounterAt(time.Now())
	c := s.contender(s.open(), lockName).acquire()
	defer c.release()
	got := c.grant.Token.Counter()
	if ceiling := interlock.CounterAt(time.Now().Add(time.Hour)); got < floor || got > ceiling {
		s.Fatalf("counter %d is not between %d (now) and %d (in an hour)", got, floor, ceiling)
	}
}
