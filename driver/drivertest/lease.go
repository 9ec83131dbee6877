package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testLeasePerRequest checks that each claim has the TTL and the renewals of its
// request if Guarantees.MaxTTL allows it.
func testLeasePerRequest(s *scene) {
	d := s.open()
	g := d.Guarantees()
	if g.MaxTTL == 0 {
		s.Skip("all claims have the lease of the driver")
	}
	long := s.contender(d, lockName)
	long.req.TTL, long.req.Renew = 3*s.TTL, -1
	s.mustLast(long.acquire())
	token := long.grant.Token
	long.req.TTL = 6 * s.TTL
	if s.mustLast(long.acquire()); long.grant.Token != token {
		s.Fatalf("a repeated request made token %d of %d", long.grant.Token, token)
	}
	long.release()

	renewed := make(chan struct{}, 100)
	often := s.contender(d, "often")
	often.req.TTL, often.req.Renew = time.Hour, s.TTL/20 // the default would be every 20 minutes
	often.req.Events.Renewed = func(_ time.Duration, err error) {
		if err == nil {
			renewed <- struct{}{}
		}
	}
	often.acquire()
	for range 2 {
		testbed.Receive(s, renewed, "a renewal as often as was asked")
	}
	s.mustLast(often)
	often.release()

	ttl := max(g.MinTTL, s.TTL/3)
	for _, renew := range []time.Duration{-1, ttl + ttl/8} { // never, and too late
		short := s.contender(d, lockName)
		short.req.TTL, short.req.Renew = ttl, renew
		short.req.Events.Renewed = func(time.Duration, error) { s.Error("it was renewed") }
		short.acquire()
		next := s.contender(s.open(), lockName).acquire()
		if left := short.grant.Lease.Remaining(); left > 0 {
			s.Fatalf("another has it while %v were left", left)
		}
		s.mustIncrease([]interlock.Token{short.grant.Token, next.grant.Token})
		s.mustHearNothing(short, "the end of a lease was reported as a loss")
		next.release()
		short.release()
	}
	s.mustBeEmpty(lockName)
}

// mustLast requires that the claim and the backend have the TTL of the request.
func (s *scene) mustLast(c *contender) {
	s.Helper()
	least := c.req.TTL - c.req.TTL/50 - s.TTL // the machine may be slow
	if left := c.grant.Lease.Remaining(); left < least || left > c.req.TTL {
		s.Fatalf("%v remain of %v", left, c.req.TTL)
	}
	inspector, ok := c.d.(driver.Inspector)
	if !ok || s.Without&(Inspection|Expiry) != 0 {
		return
	}
	state, err := inspector.Lock(s.Context(), c.req.Name)
	if err != nil || state.Holder == nil || state.Holder.Expires < least || state.Holder.Expires > c.req.TTL {
		s.Fatalf("the backend keeps %+v of a lease of %v (%v)", state.Holder, c.req.TTL, err)
	}
}

// testRenewalKeepsIt has a holder do nothing for longer than the TTL.
func testRenewalKeepsIt(s *scene) {
	c := s.contender(s.open(), lockName).acquire()
	for end := time.Now().Add(s.TTL * 5 / 2); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if left := c.grant.Lease.Remaining(); left <= 0 || left > s.TTL {
			s.Fatalf("%v remain of a TTL of %v", left, s.TTL)
		}
	}
	s.mustHold(c)
	c.release()
	s.mustBeEmpty(lockName)
}

// testDeadlineStartsWithTheRequest checks that the lease of a grant or renewal with a
// late answer ends no later than on the server.
func testDeadlineStartsWithTheRequest(s *scene) {
	d := s.open()
	s.contender(d, "warm").acquire().release() // the connection is open
	testbed.Eventually(s, "a lease is renewed twice", 2*patience, func() bool { return s.renewsTwice(d, s.TTL/12) })
}

// renewsTwice reports whether a lease was renewed twice while each answer takes twice the delay: a busy
// backend may lose it before.
func (s *scene) renewsTwice(d driver.Fenced, delay time.Duration) bool {
	renewed := make(chan struct{}, 100)
	c := s.contender(d, lockName)
	c.req.Events.Renewed = func(_ time.Duration, err error) {
		if err == nil {
			renewed <- struct{}{}
		}
	}
	defer c.persistRelease()
	s.faults.(Delayer).Delay(delay)
	defer s.faults.Heal()
	ctx, cancel := context.WithTimeout(s.Context(), s.TTL)
	defer cancel()
	if c.try(ctx) != nil {
		return false
	}
	for renewals := 0; ; renewals++ { // the first may have been sent before the grant
		if left, most := c.grant.Lease.Remaining(), s.TTL-2*delay; left > most {
			s.Fatalf("%v remain after an answer that took %v: at most %v can be relied on", left, 2*delay, most)
		}
		if renewals == 2 {
			return true
		}
		select {
		case <-renewed:
		case <-c.req.Lost:
			return false
		case <-time.After(s.TTL):
			return false
		}
	}
}

// testCrashedHolder checks that the lock becomes free after the TTL, and not before the
// holder's own deadline.
func testCrashedHolder(s *scene) {
	dying := s.open()
	holder := s.contender(dying, lockName).acquire()
	next := s.contender(s.open(), lockName)
	done := next.start(s.Context())
	s.backend.Crash(s.T, dying)
	testbed.OK(s, s.wait(done, 2*s.TTL+s.DeadWaiter+patience, "the waiter behind a crashed holder"))
	if left := holder.grant.Lease.Remaining(); left > 0 {
		s.Fatalf("the next one was granted while the crashed holder's lease had %v left", left)
	}
	s.mustIncrease([]interlock.Token{holder.grant.Token, next.grant.Token})
	next.release()
}

// testLossByDeletion checks that, if an operator deletes the lock, the holder receives
// one loss with its cause within the bound that the driver claims.
func testLossByDeletion(s *scene) {
	d := s.open()
	c := s.contender(d, lockName).acquire()
	s.backend.Delete(s.T, lockName)
	s.mustLose(c)
	if left := c.grant.Lease.Remaining(); left > 0 {
		s.Fatalf("%v remain of a lost lease", left)
	}
	s.mustHearNothing(c, "a second report")
	c.release()
	released := s.contender(d, lockName).persist()
	s.mustIncrease([]interlock.Token{c.grant.Token, released.grant.Token})
	released.release()
	s.backend.Delete(s.T, lockName)
	s.mustHearNothing(released, "received a loss after the release")
}

// mustHearNothing waits for as long as a renewal may take.
func (s *scene) mustHearNothing(c *contender, what string) {
	s.Helper()
	select {
	case cause := <-c.req.Lost:
		s.Fatalf("%s: %v", what, cause)
	case <-time.After(s.TTL/3 + 200*time.Millisecond):
	}
}

// mustNotGrant requires that a new process is granted nothing, by Open or Acquire.
func (s *scene) mustNotGrant() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Second)
	defer cancel()
	d, err := s.backend.Open(s.T)
	if err == nil && s.contender(d, lockName).try(ctx) == nil {
		s.Fatal("a grant without a server")
	}
}

// outage checks that the lease ends by the holder's clock while the server is killed, hangs for
// longer than the TTL or cannot be reached, and that the lock works again afterwards.
func (s *scene) outage(begin, end func()) {
	s.Helper()
	d := s.open()
	c := s.contender(d, lockName).acquire()
	begin()
	began := time.Now() // every renewal so far was sent earlier
	testbed.Eventually(s, "the lease ends by its own clock or the loss is reported", s.TTL, func() bool {
		return !c.valid() || len(c.req.Lost) > 0
	})
	ended := time.Since(began)
	s.mustNotGrant()
	end()
	s.Logf("ended %v after the outage began", ended.Round(time.Millisecond))
	next := s.contender(d, lockName).persist()
	if c.valid() && len(c.req.Lost) == 0 {
		s.Fatal("a lease was revived after it had ended")
	}
	s.mustIncrease([]interlock.Token{c.grant.Token, next.grant.Token})
	next.persistRelease()
	c.persistRelease()
	testbed.Eventually(s, "a new process gets it too", patience, func() bool {
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		defer cancel()
		fresh := s.contender(s.open(), lockName)
		defer fresh.persistRelease()
		return fresh.try(ctx) == nil
	})
}

// testRepeatedAcquireConverges checks that the same owner finds its grant and token.
func testRepeatedAcquireConverges(s *scene) {
	d := s.open()
	c := s.contender(d, lockName).acquire()
	token := c.grant.Token
	if c.acquire(); c.grant.Token != token {
		s.Fatalf("token %d became %d", token, c.grant.Token)
	}
	s.mustHold(c)
	c.release()
	s.mustBeEmpty(lockName)

	holder := s.contender(s.open(), lockName).acquire()
	ctx, cancel := context.WithCancel(s.Context())
	waiter := s.contender(d, lockName)
	done := waiter.start(ctx)
	one := len(s.backend.Residue(s.T, lockName))
	cancel()
	s.wait(done, patience, "a cancelled waiter")
	done = waiter.start(s.Context())
	if again := s.backend.Residue(s.T, lockName); len(again) != one {
		s.Fatalf("a repeated request took a second place: %q", again)
	}
	holder.release()
	testbed.OK(s, s.wait(done, patience, "the repeated request"))
	waiter.release()
	s.mustBeEmpty(lockName)
}

// testLostReplyToAcquire checks a request that is executed and whose answer is lost. The
// lost answer may be that of an earlier request, such as one that finds that the lock's
// place is gone. Then the test tries again.
func testLostReplyToAcquire(s *scene) {
	c := s.contender(s.open(), lockName)
	testbed.Eventually(s, "a request whose answer is lost is carried out", patience, func() bool {
		s.faults.Heal()
		c.persist().persistRelease() // the connection is open
		s.faults.(ReplyDropper).DropReplies()
		ctx, cancel := context.WithTimeout(s.Context(), 500*time.Millisecond)
		defer cancel()
		err := c.try(ctx)
		s.mustBeKind(err, interlock.Uncertain)
		if !errors.Is(err, interlock.ErrUncertain) {
			s.Fatalf("a lost reply is not ErrUncertain: %v", err)
		}
		return len(s.backend.Residue(s.T, lockName)) > 0
	})
	s.faults.Heal()
	c.persist()
	if !c.valid() {
		s.Fatal("not valid after it converged")
	}
	s.mustHold(c)
	c.persistRelease()
	s.mustBeEmpty(lockName)
}

// testLostReplyToRelease is testLostReplyToAcquire for a release.
func testLostReplyToRelease(s *scene) {
	c := s.contender(s.open(), lockName).acquire()
	s.faults.(ReplyDropper).DropReplies()
	err := c.tryRelease(500 * time.Millisecond)
	s.mustBeKind(err, interlock.Uncertain)
	s.faults.Heal()
	c.persistRelease()
	s.mustBeEmpty(lockName)
	s.contender(s.open(), lockName).persist().persistRelease()
}

// testLostReleases checks that a holder and a waiter whose releases did not arrive, and are not
// repeated, do not keep others out, although their driver and another lock of it live on.
func testLostReleases(s *scene) {
	d := s.open()
	s.contender(d, "held").acquire()
	holder, waiter := s.contender(d, lockName).acquire(), s.contender(d, lockName)
	ctx, cancel := context.WithCancel(s.Context())
	done := waiter.start(ctx)
	s.faults.Cut()
	cancel()
	_ = s.wait(done, patience, "a cancelled waiter")
	_, _ = waiter.tryRelease(200*time.Millisecond), holder.tryRelease(200*time.Millisecond)
	s.faults.Heal()
	s.contender(s.open(), lockName).persist().persistRelease()
}

// testUnmetRequirement checks that creating a lock fails if a requirement is not met.
func testUnmetRequirement(s *scene) {
	d := s.open()
	g := d.Guarantees()
	demands := []interlock.Requirements{
		{ExclusionSurvives: interlock.HolderPause},
		{MaxBlind: g.Blind - 1},
	}
	if g.Order != interlock.FIFO {
		demands = append(demands, interlock.Requirements{Order: interlock.FIFO})
	}
	if !g.CrossProcess {
		demands = append(demands, interlock.Requirements{CrossProcess: true})
	}
	for _, r := range demands {
		var unmet *interlock.UnmetError
		if _, err := lock.NewFenced(d, &lock.Options{Require: r}); !errors.As(err, &unmet) || len(unmet.Unmet) != 1 {
			s.Fatalf("%+v was accepted: %v", r, err)
		}
	}
	met := interlock.Requirements{CrossProcess: g.CrossProcess, Order: g.Order, Wait: g.Wait,
		TokensSurvive: g.TokensSurvive, ExclusionSurvives: g.ExclusionSurvives, MaxBlind: g.Blind}
	if _, err := lock.NewFenced(d, &lock.Options{Require: met}); err != nil {
		s.Fatalf("a met requirement was refused: %v", err)
	}
}

// testNoGoroutineIsLeft checks it after a driver that held, waited and lost is closed.
func testNoGoroutineIsLeft(t *testing.T, h Harness) {
	var before goleak.Option
	worked := t.Run("work", func(t *testing.T) {
		h.run(t, false, func(s *scene) {
			before = goleak.IgnoreCurrent() // includes those of the backend, which may outlive the test
			d := s.open()
			c := s.contender(d, lockName).acquire()
			ctx, cancel := context.WithCancel(s.Context())
			done := s.contender(s.open(), lockName).start(ctx)
			s.backend.Delete(s.T, lockName)
			s.wait(c.req.Lost, d.Guarantees().Blind+patience, "word of the loss")
			cancel()
			s.wait(done, patience, "the waiter")
		})
	})
	if !worked || before == nil { // the test failed or was skipped
		return
	}
	err := goleak.Find(before)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		err = goleak.Find(before) // some clients end theirs about a second after Close
	}
	testbed.OK(t, err)
}
