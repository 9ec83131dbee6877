package elect_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// silent are values that do not answer while hushed is set.
type silent struct {
	driver.Values
	hushed atomic.Bool
}

func (s *silent) wait(ctx context.Context) error {
	if s.hushed.Load() {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return nil
}

func (s *silent) Get(ctx context.Context, name string) (driver.Value, error) {
	if err := s.wait(ctx); err != nil {
		return driver.Value{}, err
	}
	return s.Values.Get(ctx, name)
}

func (s *silent) Put(ctx context.Context, name string, v driver.Value) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Values.Put(ctx, name, v)
}

// TestSilentValuesDoNotKeepTheLeadership: if a candidate cannot take office because
// its values do not answer, it releases its lock for others, though the lock is
// renewed. It continues to campaign, and leads once they answer.
func TestSilentValuesDoNotKeepTheLeadership(t *testing.T) {
	inBubble(t, func(b *bench) {
		values := &silent{Values: b.space.Values()}
		values.hushed.Store(true)
		a, _ := b.candidate("a", func(o *elect.Options) { o.Values = values })
		done := make(chan error, 1)
		go func() {
			done <- a.Run(b.Context(), name, func(context.Context, *elect.Term) error { return nil })
		}()
		synctest.Wait()
		healthy, _ := b.candidate("b")
		o := b.run(b.Context(), healthy)
		o.leads(5 * time.Minute)
		values.hushed.Store(false)
		o.resign(nil)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Minute):
			t.Error("it gave up, and does not say so")
		}
	})
}

// TestAWriteThatIsNotAnsweredIsInDoubt: it may arrive later, so writes after it have
// a higher token.
func TestAWriteThatIsNotAnsweredIsInDoubt(t *testing.T) {
	inBubble(t, func(b *bench) {
		values := &silent{Values: b.space.Values()}
		a, _ := b.candidate("a", func(o *elect.Options) { o.Values = values })
		o := b.run(b.Context(), a)
		values.hushed.Store(true)
		time.AfterFunc(40*time.Second, func() { values.hushed.Store(false) })
		testbed.OK(t, o.term.Proclaim(b.Context(), []byte("x")))
		testbed.OK(t, o.term.Proclaim(b.Context(), []byte("y")))
		v, err := b.space.Values().Get(b.Context(), "term/"+name)
		if err != nil || v.Token <= o.term.Token() {
			t.Errorf("written under %d by the term of %d, %v", v.Token, o.term.Token(), err)
		}
		o.resign(nil)
	})
}

// vague is a driver that shows, for a moment, a holder without its remaining time,
// and sends no hint of its end.
type vague struct {
	*memory.Driver
	vague, deaf atomic.Bool
}

func (v *vague) Lock(ctx context.Context, name string) (driver.LockState, error) {
	s, err := v.Driver.Lock(ctx, name)
	if s.Holder != nil && v.vague.Load() {
		s.Holder.Expires = 0
	}
	return s, err
}

func (v *vague) Watch(ctx context.Context, prefix string, changed func(string)) error {
	return v.Driver.Watch(ctx, prefix, func(name string) {
		if !v.deaf.Load() {
			changed(name)
		}
	})
}

// TestAnEndIsSeenThoughItsTimeWasNotShown: in the last moment of a lease its remaining
// time may be rounded to zero, and an expiry causes no event.
func TestAnEndIsSeenThoughItsTimeWasNotShown(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, d := b.candidate("a")
		b.run(b.Context(), a)
		v := &vague{Driver: b.space.Open(&memory.Options{TTL: ttl})}
		v.vague.Store(true)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		seen := make(chan elect.Leader, 10)
		watching := b.on(v, "w")
		go func() { _ = watching.Observe(ctx, name, func(l elect.Leader) { seen <- l }) }()
		if l := <-seen; l.Identity != "a" {
			t.Fatalf("%+v leads", l)
		}
		synctest.Wait()
		v.deaf.Store(true)
		v.vague.Store(false)
		testbed.OK(t, d.Close(b.Context()))
		began := time.Now()
		if l := <-seen; l.Token != 0 || time.Since(began) > 3*ttl {
			t.Errorf("after %v it is %+v", time.Since(began), l)
		}
	})
}

// TestTTLOfALeadership: two elections on one driver, each with its own TTL.
func TestTTLOfALeadership(t *testing.T) {
	inBubble(t, func(b *bench) {
		const own = 5 * ttl
		e, _ := b.candidate("a", func(o *elect.Options) { o.TTL = own })
		o := b.run(b.Context(), e)
		term := o.leads(0)
		if left := term.Remaining(); left > own || left < own-own/50 {
			b.Errorf("%v remain of %v", left, own)
		}
		time.Sleep(3 * own) // it is renewed
		if !term.Valid() {
			b.Error("it is not renewed")
		}
		o.resign(nil)
	})
}
