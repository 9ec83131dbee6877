package semaphore_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestPermitsWithoutRenewal end after their TTL, unless they are renewed by hand. A
// waiter may wait longer than a lease.
func TestPermitsWithoutRenewal(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = ttl / 2
		o := &semaphore.Options{Lock: &lock.Options{TTL: own, NoRenewal: true}}
		here, _ := b.process(1, o)
		there, _ := b.process(1, o)
		p := b.acquire(here)
		told := b.waits(there)
		for range 6 {
			time.Sleep(own * 2 / 3)
			testbed.OK(b, p.Renew(b.Context()))
		}
		select {
		case <-told:
			b.Fatal("a permit was given out twice")
		default:
		}
		next := <-told
		if p.Valid() || next.Claim().Token() <= p.Claim().Token() {
			b.Errorf("the former permit is valid: %v; token %d after %d", p.Valid(), next.Claim().Token(), p.Claim().Token())
		}
		if err := p.Renew(b.Context()); !errors.Is(err, interlock.ErrExpired) {
			b.Errorf("renewed after its end: %v", err)
		}
		b.release(next)
		b.release(p)
		synctest.Wait()
	})
}
