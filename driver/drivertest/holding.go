package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testExclusion checks that several processes with several contenders each never hold
// at the same time, and that tokens rise in the order of holding.
func testExclusion(s *scene) {
	const processes, each, rounds = 3, 2, 8
	var holding atomic.Int32
	var mu sync.Mutex
	var tokens []interlock.Token
	var wg sync.WaitGroup
	errs := make(chan error, processes*each)
	for range processes {
		d := s.open()
		for range each {
			wg.Go(func() {
				for range rounds {
					c := s.contender(d, lockName)
					err := c.try(s.Context())
					if mayRepeat(err) { // a busy backend answers late
						err = c.repeat()
					}
					if err != nil {
						errs <- err
						return
					}
					if n := holding.Add(1); n != 1 {
						errs <- fmt.Errorf("%d holders at the same time", n)
					}
					time.Sleep(time.Millisecond) // long enough to observe an overlap
					mu.Lock()
					tokens = append(tokens, c.grant.Token)
					mu.Unlock()
					holding.Add(-1)
					if err := c.tryRelease(patience); err != nil {
						errs <- err
						return
					}
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		s.Fatal(err)
	}
	if len(tokens) != processes*each*rounds {
		s.Fatalf("%d grants, want %d", len(tokens), processes*each*rounds)
	}
	s.mustIncrease(tokens)
	s.mustBeEmpty(lockName)
}

// testNoWait checks for an immediate answer that reports the holder and leaves nothing.
func testNoWait(s *scene) {
	holder := s.contender(s.open(), lockName)
	holder.req.NoWait = true
	holder.acquire()

	before := s.backend.Residue(s.T, lockName)
	other := s.contender(s.open(), lockName)
	other.req.NoWait = true
	err := other.try(s.Context())
	var held *interlock.HeldError
	if !errors.As(err, &held) {
		s.Fatalf("want a HeldError, got %v", err)
	}
	told := held.Owner == holder.req.Owner || held.Owner == "" && s.Without&Refuser != 0
	if !told || held.Name != lockName {
		s.Fatalf("the error reports %q held by %q, want %q by %q", held.Name, held.Owner, lockName, holder.req.Owner)
	}
	s.mustBeKind(err, interlock.Retryable)
	if after := s.backend.Residue(s.T, lockName); len(after) != len(before) {
		s.Fatalf("it left something behind: %q, before it was %q", after, before)
	}
	holder.release()
	other.acquire().release()
	s.mustBeEmpty(lockName)
}

// testNames checks that each name is rejected with ErrName or is a separate lock.
func testNames(s *scene) {
	d := s.open()
	taken := 0
	for _, name := range oddNames {
		c := s.contender(d, name)
		c.req.NoWait = true
		switch err := c.try(s.Context()); {
		case errors.Is(err, interlock.ErrName):
			continue
		case err != nil:
			c.persist() // a busy server answers late
		}
		taken++
		defer c.persistRelease()
	}
	if taken < len(oddNames)/2 {
		s.Fatalf("only %d of %d names are allowed", taken, len(oddNames))
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		if err := s.contender(d, name).try(s.Context()); !errors.Is(err, interlock.ErrName) {
			s.Fatalf("a name of %d bytes: %v, want ErrName", len(name), err)
		}
	}
}

// testManyNames holds many locks in one process and releases them all. It is skipped if
// a request or a pause of this process takes a large part of the TTL and a lease has
// ended.
func testManyNames(s *scene) {
	d := s.open()
	held := make([]*contender, cmp.Or(s.Names, 200))
	var slowest atomic.Int64
	stop := s.stalls(&slowest)
	defer stop()
	for i := range held {
		c := s.contender(d, fmt.Sprintf("many/%d", i))
		c.req.Events.Renewed = func(took time.Duration, _ error) { raise(&slowest, took) }
		began := time.Now()
		held[i] = c.persist()
		raise(&slowest, time.Since(began))
	}
	for _, c := range held {
		if !c.valid() {
			if took := time.Duration(slowest.Load()); took > s.TTL/10 {
				s.Skipf("too slow a machine: a request or a pause took %v, and a lease of %v has ended", took, s.TTL)
			}
			s.Fatalf("%q is not valid any more", c.req.Name)
		}
		c.persistRelease()
	}
	s.mustBeEmpty(held[0].req.Name)
	s.mustBeEmpty(held[len(held)-1].req.Name)
}

// stalls measures the longest pause of this process until stop is called.
func (s *scene) stalls(longest *atomic.Int64) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for last := time.Now(); ctx.Err() == nil; last = time.Now() {
			time.Sleep(10 * time.Millisecond)
			raise(longest, time.Since(last))
		}
	})
	return func() { cancel(); watching.Wait() }
}

func raise(highest *atomic.Int64, took time.Duration) {
	for now := highest.Load(); now < int64(took) && !highest.CompareAndSwap(now, int64(took)); {
		now = highest.Load()
	}
}

// testInspect checks that every process sees the holder and the waiters, in order.
func testInspect(s *scene) {
	d := s.open()
	inspector, ok := d.(driver.Inspector)
	if !ok {
		s.Fatal("the driver is no Inspector, and Without does not say so")
	}
	holder := s.contender(d, lockName).persist()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	first, second := s.contender(s.open(), lockName), s.contender(s.open(), lockName)
	done := []chan error{first.start(ctx), second.start(ctx)}

	state, err := inspector.Lock(s.Context(), lockName)
	testbed.OK(s, err)
	switch {
	case state.Holder == nil || state.Holder.Owner != holder.req.Owner:
		s.Fatalf("holder %+v, want %s", state.Holder, holder.req.Owner)
	case state.Holder.Token != holder.grant.Token:
		s.Fatalf("token %d, want %d", state.Holder.Token, holder.grant.Token)
	case state.Holder.Foreign:
		s.Fatal("our own holder is shown as foreign")
	case (state.Holder.Expires <= 0) != (s.Without&Expiry != 0) || state.Holder.Expires > 2*s.TTL:
		s.Fatalf("expires in %v with a TTL of %v", state.Holder.Expires, s.TTL)
	case s.Without&Queue != 0: // no waiters are shown, or those of this driver
	case len(state.Waiters) != 2 || state.Waiters[0].Owner != first.req.Owner || state.Waiters[1].Owner != second.req.Owner:
		s.Fatalf("waiters %+v, want %s then %s", state.Waiters, first.req.Owner, second.req.Owner)
	}
	s.contender(d, "accounts/7").persist()
	s.contender(d, "other").persist()
	locks, more, err := inspector.Locks(s.Context(), "accounts/", 10)
	if err != nil || more || len(locks) != 2 || locks[0].Name != lockName || locks[1].Name != "accounts/7" {
		s.Fatalf("list: %+v, more %v, %v", locks, more, err)
	}
	for limit, want := range map[int]int{1: 1, 0: 0, -1: 0, math.MaxInt: 3} {
		if locks, more, err = inspector.Locks(s.Context(), "", limit); err != nil || more != (want < 3) || len(locks) != want {
			s.Fatalf("at most %d: %+v, more %v, %v", limit, locks, more, err)
		}
	}
	if free, err := inspector.Lock(s.Context(), "nobody's"); err != nil || free.Holder != nil || len(free.Waiters) > 0 {
		s.Fatalf("a free lock: %+v, %v", free, err)
	}
	cancel()
	for _, d := range done {
		s.wait(d, patience, "a cancelled waiter")
	}
	first.release()
	second.release()
}

// testInspectShowsEveryGrant checks that Inspect, also of another process, shows each
// grant as soon as its Acquire has returned.
func testInspectShowsEveryGrant(s *scene) {
	drivers, observer := []driver.Fenced{s.open(), s.open()}, s.open()
	inspector, ok := observer.(driver.Inspector)
	if !ok {
		s.Fatal("the driver is no Inspector, and Without does not say so")
	}
	var holders []*contender
	for i := range 10 {
		c := s.contender(drivers[i%2], fmt.Sprintf("accounts/%d", i)).acquire()
		holders = append(holders, c)
		locks, _, err := inspector.Locks(s.Context(), "accounts/", 20)
		if err != nil || len(locks) != len(holders) {
			s.Fatalf("%d grants, %d locks are listed (%v)", len(holders), len(locks), err)
		}
		for at, state := range locks { // the order of names is the order of grants
			if state.Holder == nil || state.Holder.Owner != holders[at].req.Owner {
				s.Fatalf("%q is shown with holder %+v, want %s", state.Name, state.Holder, holders[at].req.Owner)
			}
		}
		state, err := inspector.Lock(s.Context(), c.req.Name)
		if err != nil || state.Holder == nil || state.Holder.Owner != c.req.Owner {
			s.Fatalf("the grant that was just returned: %+v, %v", state, err)
		}
	}
	for _, c := range holders {
		c.release()
	}
}

// testReleaseIsIdempotent includes locks that were never acquired.
func testReleaseIsIdempotent(s *scene) {
	d := s.open()
	s.contender(d, lockName).release()
	c := s.contender(d, lockName).acquire()
	c.release()
	c.release()
	next := s.contender(s.open(), lockName).acquire()
	c.release()
	s.mustHold(next)
	if !next.valid() {
		s.Fatal("the next holder's lease ended")
	}
	next.release()
	s.mustBeEmpty(lockName)
}

// testReleaseByNonHolder checks that only the holder can release.
func testReleaseByNonHolder(s *scene) {
	holder := s.contender(s.open(), lockName).acquire()
	thief := s.contender(s.open(), lockName)
	_ = thief.tryRelease(patience) // may return anything, must have no effect
	s.mustHold(holder)

	waiter := s.contender(s.open(), lockName)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := waiter.start(ctx)
	_ = thief.tryRelease(patience)
	s.mustHold(holder)
	holder.release()
	testbed.OK(s, s.wait(done, patience, "the waiter"))
	waiter.release()
}

// testReleaseAfterLossSparesTheNext checks that a late release after a loss does not
// affect the next holder.
func testReleaseAfterLossSparesTheNext(s *scene) {
	loser := s.contender(s.open(), lockName).acquire()
	s.backend.Delete(s.T, lockName)
	next := s.contender(s.open(), lockName).persist()
	loser.persistRelease()
	s.mustHold(next)
	s.mustHearNothing(next, "the next holder received a loss")
	next.release()
	s.mustBeEmpty(lockName)
}

// testGuarantees checks claims that no driver may make, and values that all must state.
func testGuarantees(s *scene) {
	d := s.open()
	g, class := d.Guarantees(), interlock.Fenced
	if Unwrap(d) != nil {
		class = interlock.Advisory
	}
	switch {
	case g.Class != class:
		s.Fatalf("class %v, want %v", g.Class, class)
	case g.Driver == "" || (g.TokenFrom == "") != (class == interlock.Advisory):
		s.Fatalf("the driver's name or token source is missing: %+v", g)
	case (g.Order == interlock.FIFO) != (s.Without&FIFO == 0):
		s.Fatalf("the driver claims order %v, the harness does not", g.Order)
	case g.ExclusionSurvives.Has(interlock.HolderPause):
		s.Fatal("no driver can promise exclusion over a pause of the holder")
	case g.TTL != s.TTL && (g.TTL != 0 || g.Liveness != interlock.Connection):
		s.Fatalf("TTL %v, the harness has %v", g.TTL, s.TTL)
	case g.Blind <= 0 || g.Blind > 2*s.TTL:
		s.Fatalf("Blind %v is no useful bound with a TTL of %v", g.Blind, s.TTL)
	case g.Order == interlock.OrderUnstated || g.Wait == interlock.WaitUnstated || g.Liveness == interlock.LivenessUnstated || g.Clock == interlock.ClockUnstated:
		s.Fatalf("something is unstated: %+v", g)
	}
}

// testContextAlreadyEnded checks that the cause is returned soon and nothing stays. A release ends
// the renewal of a claim in any case.
func testContextAlreadyEnded(s *scene) {
	d := s.open()
	ctx, cause := endedContext(s.T)
	c := s.contender(d, lockName)
	done := make(chan error, 1)
	go func() { done <- c.try(ctx) }()
	if err := s.wait(done, patience, "acquire with an ended context"); !errors.Is(err, cause) {
		s.Fatalf("got %v, want the cause", err)
	}
	c.persistRelease()
	s.mustBeEmpty(lockName)
	c = s.contender(d, lockName).acquire()
	_ = d.Release(ctx, lockName, c.req.Owner)
	s.contender(s.open(), lockName).persist().persistRelease()
}

// testClose checks that later calls are rejected, a waiter returns, and held locks
// expire.
func testClose(s *scene) {
	holder := s.contender(s.open(), lockName).acquire()
	d := s.open()
	waiter := s.contender(d, lockName)
	done := waiter.start(s.Context())
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	testbed.OK(s, d.Close(ctx))
	if err := s.wait(done, patience, "a waiter of a closed driver"); err == nil {
		s.Fatal("a waiter of a closed driver was granted")
	}
	if err := s.contender(d, lockName).try(s.Context()); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("acquire after Close: %v, want ErrClosed", err)
	}
	if err := d.Release(s.Context(), lockName, "x"); !errors.Is(err, interlock.ErrClosed) {
		s.Fatalf("release after Close: %v, want ErrClosed", err)
	}
	if inspector, ok := d.(driver.Inspector); ok && s.Without&Inspection == 0 {
		_, err := inspector.Lock(s.Context(), lockName)
		_, _, err2 := inspector.Locks(s.Context(), "", 10)
		if !errors.Is(err, interlock.ErrClosed) || !errors.Is(err2, interlock.ErrClosed) {
			s.Fatalf("a look at locks after Close: %v and %v, want ErrClosed", err, err2)
		}
	}
	if err := d.Close(ctx); err != nil {
		s.Fatalf("Close again: %v", err)
	}
	holder.release()
	began := time.Now()
	s.contender(s.open(), lockName).acquire().release()
	if took := time.Since(began); took > s.DeadWaiter+patience/2 {
		s.Fatalf("a closed driver's waiter held up the next one for %v", took)
	}
}

// testCloseLeavesWhatIsHeldToExpire checks that no one else is granted a lock before its
// lease ends: the work of its holder may continue.
func testCloseLeavesWhatIsHeldToExpire(s *scene) {
	closing, other := s.open(), s.open()
	held := s.contender(closing, lockName).acquire()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	testbed.OK(s, closing.Close(ctx))
	next := s.contender(other, lockName)
	next.req.NoWait = true
	if err := next.try(s.Context()); !errors.Is(err, interlock.ErrHeld) {
		s.Fatalf("a closed driver released its lock: another acquire returned %v", err)
	}
	last := s.contender(other, lockName).acquire()
	if held.valid() {
		s.Fatalf("another has it while %v were left", held.grant.Lease.Remaining())
	}
	last.release()
}
