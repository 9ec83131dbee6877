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
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

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
