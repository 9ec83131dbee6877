package rwlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/rwlock"
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
			if err := r.Renew(b.Context()); err != nil {
				b.Fatal(err)
			}
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
		if err := w.Renew(b.Context()); err != nil {
			b.Fatal(err)
		}
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
