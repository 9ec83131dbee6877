package elect_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestAHandOverGoesToTheSuccessor(t *testing.T) {
	inBubble(t, func(b *bench) {
		stoodBack, slow := 0, make(chan struct{})
		a, _ := b.candidate("a")
		second, _ := b.candidate("b", func(o *elect.Options) {
			o.Hooks = &elect.Hooks{Yielded: func(e elect.Yielded) {
				<-slow // which delays nobody
				stoodBack++
				if e.Name != name || e.Nominee != "c" {
					t.Errorf("stood back for %+v", e)
				}
			}}
		})
		third, _ := b.candidate("c")
		watching, _ := b.candidate("w")
		w, stop := b.observe(watching)
		leader := b.run(b.Context(), a)
		impatient, successor := b.run(b.Context(), second), b.run(b.Context(), third)
		b.saw(w, ":>", "a:>")

		testbed.OK(t, leader.term.HandOver(b.Context(), "c"))
		b.saw(w, "a:>c")
		testbed.OK(t, leader.term.Proclaim(b.Context(), []byte("leaving"))) // it keeps the nomination
		b.saw(w, "a:leaving>c")
		impatient.waits()
		released := time.Now()
		leader.resign(nil)
		successor.leads(0)
		close(slow)
		impatient.waits()
		if gap := successor.elected.Sub(released); gap != 0 {
			t.Errorf("nobody led for %v", gap)
		}
		if stoodBack != 1 {
			t.Errorf("%d times somebody stood back, want once", stoodBack)
		}

		// The nomination is over, also while the nominee waits for another term.
		again, _ := b.candidate("c")
		returned := b.run(b.Context(), again)
		successor.resign(nil)
		impatient.leads(0)
		impatient.resign(nil)
		returned.leads(0)
		returned.resign(nil)
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestADeadSuccessorCostsAtMostALease(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, _ := b.candidate("a")
		other, _ := b.candidate("b", func(o *elect.Options) { o.StandBack = 10 * ttl })
		dying, d := b.candidate("c")
		leader := b.run(b.Context(), a)
		heir, dead := b.run(b.Context(), other), b.run(b.Context(), dying)
		testbed.OK(t, leader.term.HandOver(b.Context(), "c"))
		_ = d.Close(b.Context()) // its place expires, without an event
		<-dead.done
		leader.resign(nil)
		heir.leads(ttl + time.Second)
		heir.resign(nil)
	})
}

// TestANominationExpires: if a nominee is in the queue and never leads, others lead
// after StandBack.
func TestANominationExpires(t *testing.T) {
	inBubble(t, func(b *bench) {
		patient := func(o *elect.Options) { o.StandBack = 10 * time.Second }
		unordered := func() barging { return barging{b.space.Open(&memory.Options{TTL: ttl})} }
		leader := b.run(b.Context(), b.on(unordered(), "a", patient))
		leader.leads(0)
		testbed.OK(t, leader.term.HandOver(b.Context(), "nobody")) // this queue is not shown
		heir := b.run(b.Context(), b.on(unordered(), "b", patient))
		resigned := time.Now()
		leader.resign(nil)
		<-heir.begun
		if waited := heir.elected.Sub(resigned); waited < 10*time.Second || waited > 13*time.Second {
			t.Errorf("the nomination was respected for %v", waited)
		}
		heir.resign(nil)
	})
}

// Names of former elections are forgotten.
func TestFormerElectionsAreForgotten(t *testing.T) {
	for order, open := range map[string]func(*memory.Driver) driver.Fenced{
		"in order": func(d *memory.Driver) driver.Fenced { return d },
		"barging":  func(d *memory.Driver) driver.Fenced { return barging{d} },
	} {
		t.Run(order, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				e := b.on(open(b.space.Open(&memory.Options{TTL: ttl})), "a")
				for i := range 100 {
					testbed.OK(b, e.Run(b.Context(), fmt.Sprint(i), func(context.Context, *elect.Term) error { return nil }))
					time.Sleep(time.Second)
				}
				if n := elect.Remembered(e); n > 1 {
					b.Errorf("%d elections are remembered", n)
				}
			})
		})
	}
}

// barging is a driver without an order of waiters.
type barging struct{ *memory.Driver }

func (d barging) Guarantees() interlock.Guarantees {
	g := d.Driver.Guarantees()
	g.Order = interlock.Barging
	return g
}

func TestHandOverIsRefused(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, _ := b.candidate("a")
		leader := b.run(b.Context(), a)
		for successor, kind := range map[string]interlock.ErrorKind{"": interlock.Bug, "a": interlock.Bug, "nobody": interlock.Retryable} {
			if err := leader.term.HandOver(b.Context(), successor); err == nil || interlock.Kind(err) != kind {
				t.Errorf("hand over to %q: %v, want an error that is %v", successor, err, kind)
			}
		}
		leader.resign(nil)
		if err := leader.term.HandOver(b.Context(), "nobody"); !errors.Is(err, interlock.ErrReleased) {
			t.Errorf("after the term: %v", err)
		}
		synctest.Wait()
	})
}
