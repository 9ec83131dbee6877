package lock_test

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// Between the end of the belief and the next grant there is the delay.
func TestLockDelayEndsTheClaimBeforeTheLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		const delay = 2 * time.Second
		dying, d := b.process(&lock.Options{LockDelay: delay})
		next, _ := b.process(nil)
		c := b.acquire(dying)
		if left := c.Remaining(); left > ttl-ttl/100-delay {
			b.Errorf("%v left of a lease of %v", left, ttl)
		}
		_ = d.Driver.Close(b.Context()) // it renews nothing any more
		ended := make(chan time.Time, 1)
		go func() { <-c.Context().Done(); ended <- time.Now() }()
		n := b.acquire(next)
		if gap := time.Since(<-ended); gap < delay {
			b.Errorf("the next holder came %v after the claim had ended", gap)
		}
		if context.Cause(c.Context()) != interlock.ErrExpired || c.Valid() {
			b.Errorf("cause %v, valid %v", context.Cause(c.Context()), c.Valid())
		}
		b.release(n)
	})
}

func TestLockDelayLeavesRoomToRenew(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{LockDelay: ttl * 49 / 100})
		c := b.acquire(l)
		time.Sleep(5 * ttl)
		if !c.Valid() {
			b.Error("a claim that is renewed ended")
		}
		b.release(c)
	})
}

// The later the renewals, the less room there is for a delay.
func TestLockDelayAndRenewEveryShareTheLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := b.space.Open(&memory.Options{TTL: ttl})
		testbed.CloseAfter(b, d)
		most := ttl*49/100 - ttl/6
		if _, err := lock.NewFenced(d, &lock.Options{RenewEvery: ttl / 2, LockDelay: most + 1}); !errors.Is(err, interlock.ErrUnmet) {
			b.Errorf("a delay that ends the claim before its renewal: %v", err)
		}
		l, err := lock.NewFenced(d, &lock.Options{RenewEvery: ttl / 2, LockDelay: most})
		testbed.OK(b, err)
		testbed.CloseAfter(b, l)
		c := b.acquire(l)
		time.Sleep(5 * ttl)
		if !c.Valid() {
			b.Error("a claim that is renewed ended")
		}
		b.release(c)
	})
}

// An answer that comes late does not revive a claim that was seen to end, though
// the driver's own lease goes on.
func TestAClaimThatEndedEarlyStaysEnded(t *testing.T) {
	inBubble(t, func(b *bench) {
		const delay = 2 * time.Second
		l, d := b.process(&lock.Options{LockDelay: delay})
		c := b.acquire(l)
		d.set(func() { d.shorter = ttl - delay })
		if c.Valid() {
			b.Fatal("it is valid without time")
		}
		d.set(func() { d.shorter = 0 })
		if c.Valid() || c.Remaining() > 0 {
			b.Error("it came back")
		}
		_ = c.Release(b.Context())
		if context.Cause(c.Context()) != interlock.ErrExpired {
			b.Errorf("cause %v", context.Cause(c.Context()))
		}
		synctest.Wait()
		b.mustBeEmpty()
	})
}

func TestLockDelayNeedsClaimsThatLiveByTime(t *testing.T) {
	d := memory.NewSpace().Open(&memory.Options{TTL: ttl})
	defer d.Close(t.Context())
	for _, c := range []struct {
		delay    time.Duration
		liveness interlock.Liveness
		kind     error
	}{
		{ttl * 49 / 100, interlock.ServerTTL, nil},
		{ttl * 49 / 100, interlock.Session, nil},
		{ttl*49/100 + 1, interlock.ServerTTL, interlock.ErrUnmet},
		{1, interlock.Connection, interlock.ErrUnmet},
		{1, interlock.LivenessUnstated, interlock.ErrUnmet},
	} {
		_, err := lock.NewFenced(living{d, c.liveness}, &lock.Options{LockDelay: c.delay})
		if !errors.Is(err, c.kind) {
			t.Errorf("%v of a lease of %v by %s: %v", c.delay, ttl, c.liveness, err)
		}
	}
}

type living struct {
	driver.Fenced
	by interlock.Liveness
}

func (l living) Guarantees() interlock.Guarantees {
	g := l.Fenced.Guarantees()
	g.Liveness = l.by
	return g
}

func TestMaxHold(t *testing.T) {
	inBubble(t, func(b *bench) {
		const most = 4 * ttl
		var long []observe.LockHeldLong
		var ended []observe.LockEnded
		l, _ := b.process(&lock.Options{MaxHold: most, Hooks: &observe.Lock{
			HeldLong: func(e observe.LockHeldLong) { long = append(long, e) },
			Ended:    func(e observe.LockEnded) { ended = append(ended, e) },
		}})
		began := time.Now()
		err := l.Do(b.Context(), name, func(ctx context.Context, c interlock.Claim) error {
			if left := c.Remaining(); left > ttl {
				b.Errorf("%v left of a lease of %v", left, ttl)
			}
			<-ctx.Done()
			if took := time.Since(began); took != most || c.Valid() {
				b.Errorf("it ended after %v, valid %v", took, c.Valid())
			}
			if b.residue() != 1 {
				b.Error("it was given up before the work returned")
			}
			return nil
		})
		if !errors.Is(err, interlock.ErrExpired) || interlock.Kind(err) != interlock.Uncertain {
			b.Errorf("got %v", err)
		}
		synctest.Wait()
		if len(long) != 1 || long[0].Held != most*3/4 || long[0].Max != most || long[0].Name != name || !long[0].Token.Valid() {
			b.Errorf("warnings %+v", long)
		}
		if len(ended) != 1 || ended[0].Held != most || ended[0].Cause.Error() == interlock.ErrExpired.Error() {
			b.Errorf("ended %+v", ended)
		}
		b.mustBeEmpty()
	})
}

// TestExtend: only the holder prolongs a hold for a fixed time.
func TestExtend(t *testing.T) {
	inBubble(t, func(b *bench) {
		const most = 2 * ttl
		l, _ := b.process(&lock.Options{MaxHold: most})
		c := b.acquire(l)
		for range 3 {
			time.Sleep(most - time.Second)
			if err := c.Extend(most); err != nil || !c.Valid() {
				b.Fatalf("extended: %v", err)
			}
		}
		began := time.Now()
		<-c.Context().Done()
		if held := time.Since(began); held != most || !errors.Is(context.Cause(c.Context()), interlock.ErrExpired) {
			b.Errorf("it ended %v after it was extended by %v: %v", held, most, context.Cause(c.Context()))
		}
		if err := c.Extend(most); !errors.Is(err, interlock.ErrExpired) || interlock.Kind(err) != interlock.Definite || c.Valid() {
			b.Errorf("a claim that has ended: %v", err)
		}
		b.release(c)

		c = b.acquire(l)
		testbed.OK(b, c.Extend(time.Second)) // less is possible too
		time.Sleep(2 * time.Second)
		if c.Valid() || interlock.Kind(c.Extend(0)) != interlock.Bug {
			b.Error("it was not shortened")
		}
		b.release(c)
		unlimited, _ := b.process(nil)
		c = b.acquire(unlimited)
		if err := c.Extend(time.Second); interlock.Kind(err) != interlock.Bug {
			b.Errorf("without MaxHold: %v", err)
		}
		b.release(c)
	})
}

// A function that does not look at its context keeps others out no longer than
// its lease would without renewals.
func TestMaxHoldFreesTheNameOfStuckWork(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{MaxHold: ttl})
		next, _ := b.process(nil)
		began := time.Now()
		stuck := b.acquire(l)
		c := b.acquire(next)
		if took := time.Since(began); took < ttl+ttl/2 || took > 2*ttl {
			b.Errorf("the next holder came after %v", took)
		}
		if stuck.Valid() || c.Token() <= stuck.Token() {
			b.Errorf("valid %v, token %d after %d", stuck.Valid(), c.Token(), stuck.Token())
		}
		_ = stuck.Release(b.Context())
		synctest.Wait()
		if !c.Valid() || b.residue() != 1 {
			b.Error("the late release touched the next holder")
		}
		b.release(c)
	})
}

// Close does not leave anything to come back later.
func TestCloseForgetsWhatLapses(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := &faulty{Driver: b.space.Open(&memory.Options{TTL: ttl})}
		defer d.Close(b.Context())
		l, err := lock.NewFenced(d, &lock.Options{MaxHold: time.Second})
		testbed.OK(b, err)
		c := b.acquire(l)
		<-c.Context().Done()
		testbed.OK(b, l.Close(b.Context()))
		before := d.releases
		time.Sleep(2 * ttl)
		if d.releases != before {
			b.Error("a closed lock sent a request by itself")
		}
		b.release(c)
	})
}

// TestTTLOfALock: two locks on one driver, each with a TTL and a renewal interval of
// its own.
func TestTTLOfALock(t *testing.T) {
	inBubble(t, func(b *bench) {
		d := b.space.Open(&memory.Options{TTL: ttl})
		defer d.Close(context.Background())
		for _, o := range []lock.Options{{TTL: 10 * ttl}, {TTL: ttl / 4}, {TTL: ttl, RenewEvery: ttl / 20}, {RenewEvery: ttl / 2}} {
			var renewals atomic.Int64
			o.Hooks = &observe.Lock{Renewed: func(observe.LockRenewed) { renewals.Add(1) }}
			l, err := lock.NewFenced(d, &o)
			testbed.OK(b, err)
			own, every := o.TTL, o.RenewEvery
			own = cmp.Or(own, ttl)
			every = cmp.Or(every, own/3)
			c := b.acquire(l)
			if left := c.Remaining(); left > own || left < own-own/50 {
				b.Errorf("%v remain of %v", left, own)
			}
			time.Sleep(10*every + every/2)
			if renewals.Load() != 10 || !c.Valid() {
				b.Errorf("TTL %v: %d renewals in 10 intervals of %v, valid %v", own, renewals.Load(), every, c.Valid())
			}
			b.release(c)
			testbed.OK(b, l.Close(b.Context()))
		}
	})
}

func TestNoRenewal(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = 3 * ttl
		var renewals atomic.Int64
		l, d := b.process(&lock.Options{TTL: own, NoRenewal: true, Hooks: &observe.Lock{Renewed: func(observe.LockRenewed) { renewals.Add(1) }}})
		c := b.acquire(l)
		for range 3 {
			time.Sleep(2 * ttl)
			d.set(func() { d.loseAcquires = 1 }) // it is repeated
			if err := c.Renew(b.Context()); err != nil || c.Remaining() < own-own/50 {
				b.Fatalf("renewed by hand: %v, %v left", err, c.Remaining())
			}
		}
		token, began := c.Token(), time.Now()
		<-c.Context().Done()
		if took := time.Since(began); took > own || took < own-own/50 || !errors.Is(context.Cause(c.Context()), interlock.ErrExpired) {
			b.Errorf("it ended after %v of %v: %v", took, own, context.Cause(c.Context()))
		}
		if err := c.Renew(b.Context()); !errors.Is(err, interlock.ErrExpired) || interlock.Kind(err) != interlock.Definite {
			b.Errorf("renewed after its end: %v", err)
		}
		other, _ := b.process(nil)
		next := b.acquire(other)
		if next.Token() <= token || renewals.Load() != 0 {
			b.Errorf("token %d after %d, %d renewals", next.Token(), token, renewals.Load())
		}
		b.release(next)
		b.release(c)
		synctest.Wait()
		b.mustBeEmpty()
	})
}

// TestNoRenewalIsNotPassedOn: the next goroutine gets a lease of its own, not the rest
// of this one.
func TestNoRenewalIsNotPassedOn(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{TTL: ttl, NoRenewal: true, Handovers: 5})
		c := b.acquire(l)
		next := b.queue(l)
		time.Sleep(ttl / 2)
		b.release(c)
		n := <-next
		if left := n.Remaining(); left < ttl-ttl/50 || n.Token().Sub() != 0 {
			b.Errorf("%v remain of %v, token %d", left, ttl, n.Token())
		}
		b.release(n)
	})
}

// TestRenewFindsALoss: what was taken away is not taken again in the claim's name.
func TestRenewFindsALoss(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{TTL: 3 * ttl, NoRenewal: true})
		other, _ := b.process(nil)
		for _, taken := range []bool{false, true} {
			c := b.acquire(l)
			b.space.Revoke(name)
			var next *lock.Claim
			if taken {
				next = b.acquire(other)
			}
			if err := c.Renew(b.Context()); !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite || c.Valid() {
				b.Errorf("taken by another %v: %v, valid %v", taken, err, c.Valid())
			}
			synctest.Wait()
			if taken {
				if !next.Valid() {
					b.Error("the next holder lost it")
				}
				b.release(next)
			}
			b.mustBeEmpty()
			b.release(c)
		}
	})
}

// TestReleaseDuringARenewal leaves nothing behind, though the renewal comes later.
func TestReleaseDuringARenewal(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{TTL: 3 * ttl, NoRenewal: true})
		c := b.acquire(l)
		d.afterAcquired = func() {
			d.afterAcquired = nil
			b.release(c)
			if _, err := d.Acquire(b.Context(), d.last); err != nil { // as if the answer were older than the release
				b.Error(err)
			}
		}
		if err := c.Renew(b.Context()); !errors.Is(err, interlock.ErrReleased) {
			b.Errorf("got %v", err)
		}
		synctest.Wait()
		b.mustBeEmpty()
	})
}

func TestOwnLeaseIsChecked(t *testing.T) {
	inBubble(t, func(b *bench) {
		var unmet *interlock.UnmetError
		shared := sharedLease{b.space.Open(&memory.Options{TTL: ttl})}
		defer shared.Close(context.Background())
		for _, o := range []lock.Options{{TTL: ttl}, {NoRenewal: true}, {RenewEvery: time.Second}} {
			if _, err := lock.NewFenced(shared, &o); !errors.As(err, &unmet) {
				b.Errorf("%+v on a driver with one lease: %v", o, err)
			}
		}
		own := b.space.Open(&memory.Options{TTL: ttl})
		defer own.Close(context.Background())
		for _, o := range []lock.Options{{TTL: 1}, {TTL: 1000 * time.Hour}} {
			if _, err := lock.NewFenced(own, &o); !errors.As(err, &unmet) {
				b.Errorf("%+v: %v", o, err)
			}
		}
		for _, o := range []lock.Options{{RenewEvery: -1}, {RenewEvery: ttl}, {RenewEvery: time.Second, NoRenewal: true}} {
			if _, err := lock.NewFenced(own, &o); interlock.Kind(err) != interlock.Bug {
				b.Errorf("%+v: %v", o, err)
			}
		}
		if _, err := lock.NewFenced(own, &lock.Options{NoRenewal: true, Require: interlock.Requirements{MaxBlind: ttl / 3}}); !errors.As(err, &unmet) {
			b.Errorf("a loss is noticed late without renewal, and was promised sooner: %v", err)
		}
		renewed, _ := b.process(nil)
		c := b.acquire(renewed)
		if err := c.Renew(b.Context()); interlock.Kind(err) != interlock.Bug {
			b.Errorf("Renew beside the driver: %v", err)
		}
		b.release(c)
	})
}

// sharedLease is a driver all of whose claims have one lease.
type sharedLease struct{ *memory.Driver }

func (s sharedLease) Guarantees() interlock.Guarantees {
	g := s.Driver.Guarantees()
	g.MinTTL, g.MaxTTL = 0, 0
	return g
}
