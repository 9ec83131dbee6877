package rwlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestClaimsWithoutRenewal end after their TTL, unless they are renewed by hand.
func TestClaimsWithoutRenewal(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = ttl / 2
		here, _ := b.process(&rwlock.Options{Lock: &lock.Options{TTL: own, NoRenewal: true}})
		there, _ := b.process(nil)
		r := b.read(here)
		for range 4 {
			time.Sleep(own * 2 / 3)
			testbed.OK(b, r.Renew(b.Context()))
		}
		if _, err := there.TryWrite(b.Context(), name); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("a writer beside a reader: %v", err)
		}
		b.release(b.write(there)) // when the reader's lease has ended
		if r.Valid() {
			b.Error("a writer was let in beside a reader")
		}
		b.release(r)

		w := b.write(here)
		time.Sleep(own * 2 / 3)
		testbed.OK(b, w.Renew(b.Context()))
		time.Sleep(own * 2 / 3)
		if !w.Valid() {
			b.Error("a renewed writer is not valid")
		}
		b.release(b.read(there))
		if w.Valid() {
			b.Error("a reader was let in beside a writer")
		}
		b.release(w)
		synctest.Wait()
	})
}
