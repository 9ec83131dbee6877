package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestAHolderDescribesItself: others see that for as long as the claim lasts, and a
// stale holder cannot replace it.
func TestAHolderDescribesItself(t *testing.T) {
	inBubble(t, func(b *bench) {
		o := &lock.Options{Values: b.space.Values(), Handovers: -1}
		here, _ := b.process(o)
		there, _ := b.process(o)
		shows := func(want string) {
			b.Helper()
			h, err := there.Show(b.Context(), name)
			if err != nil || h == nil || string(h.Data) != want || h.Token <= 0 || h.Owner == "" {
				b.Errorf("shown %+v, %v; want %q", h, err, want)
			}
		}
		if h, err := there.Show(b.Context(), name); h != nil || err != nil {
			b.Errorf("nobody holds it: %+v, %v", h, err)
		}
		first := b.acquire(here)
		shows("")
		for _, text := range []string{"backup of db7", strings.Repeat("x", lock.MaxMetadata)} {
			testbed.OK(b, first.Describe(b.Context(), []byte(text)))
			shows(text)
		}
		if err := first.Describe(b.Context(), make([]byte, lock.MaxMetadata+1)); interlock.Kind(err) != interlock.Bug {
			b.Errorf("too long: %v", err)
		}
		b.release(first)
		second := b.acquire(there)
		shows("") // not what the former holder said
		testbed.OK(b, second.Describe(b.Context(), []byte("report")))
		if err := first.Describe(b.Context(), []byte("late")); interlock.Kind(err) != interlock.Definite || !errors.Is(err, interlock.ErrReleased) {
			b.Errorf("a released claim: %v", err)
		}
		late := driver.Value{Token: first.Token(), Data: []byte("late")}
		if err := b.space.Values().Put(b.Context(), "described/"+name, late); !errors.Is(err, interlock.ErrStaleToken) {
			b.Errorf("a late request of the former holder: %v", err)
		}
		shows("report")
		b.release(second)
	})
}

// TestAHolderIsAskedToRelease, whether it waits for that already or not; a request
// concerns the holder of its time.
func TestAHolderIsAskedToRelease(t *testing.T) {
	inBubble(t, func(b *bench) {
		here, _ := b.process(&lock.Options{Values: b.space.Values(), Handovers: -1})
		there, _ := b.process(&lock.Options{Values: b.space.Values(), Identity: "operator"})
		if err := there.RequestRelease(b.Context(), name, "nobody"); interlock.Kind(err) != interlock.Definite {
			b.Errorf("nobody holds it: %v", err)
		}
		c := b.acquire(here)
		asked := make(chan lock.ReleaseRequest, 1)
		go func() {
			a, err := c.ReleaseRequested(b.Context())
			if err != nil {
				b.Error(err)
			}
			asked <- a
		}()
		time.Sleep(3 * ttl)
		testbed.OK(b, there.RequestRelease(b.Context(), name, "a deploy"))
		want := lock.ReleaseRequest{By: "operator", Reason: "a deploy"}
		if got := <-asked; got != want {
			b.Errorf("asked %+v", got)
		}
		if got, err := c.ReleaseRequested(b.Context()); got != want || err != nil || !c.Valid() {
			b.Errorf("asked before: %+v, %v", got, err)
		}
		b.release(c)

		next := b.acquire(here)
		ctx, cancel := context.WithTimeout(b.Context(), ttl)
		defer cancel()
		if got, err := next.ReleaseRequested(ctx); !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("the next holder was asked: %+v, %v", got, err)
		}
		go func() { time.Sleep(time.Second); b.release(next) }()
		if _, err := next.ReleaseRequested(b.Context()); !errors.Is(err, interlock.ErrReleased) {
			b.Errorf("the claim ended: %v", err)
		}
		synctest.Wait()
	})
}

// TestWithoutValuesNothingIsKeptBeside a lock.
func TestWithoutValuesNothingIsKeptBeside(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		c := b.acquire(l)
		_, err := c.ReleaseRequested(b.Context())
		for _, err := range []error{err, c.Describe(b.Context(), nil), l.RequestRelease(b.Context(), name, "")} {
			if interlock.Kind(err) != interlock.Bug {
				b.Errorf("got %v", err)
			}
		}
		if h, err := l.Show(b.Context(), name); err != nil || h == nil || h.Data != nil || h.Token != c.Token() {
			b.Errorf("shown %+v, %v", h, err)
		}
		b.release(c)
	})
}
