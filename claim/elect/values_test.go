package elect_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// flaky are values with faults from the test.
type flaky struct {
	driver.Values
	mu     sync.Mutex
	before func(name string, v driver.Value) error // instead of the Put, if it returns an error
	after  func(name string, v driver.Value) error // instead of the answer
}

func (f *flaky) Put(ctx context.Context, name string, v driver.Value) error {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(name, v); err != nil {
			return err
		}
	}
	err := f.Values.Put(ctx, name, v)
	if err == nil && after != nil {
		err = after(name, v)
	}
	return err
}

func doubt(what string) error {
	return &interlock.Error{Op: "put", Kind: interlock.Uncertain, Err: errors.New(what)}
}

func (b *bench) flaky() (*flaky, func(*elect.Options)) {
	f := &flaky{Values: b.space.Values()}
	return f, func(o *elect.Options) { o.Values = f }
}

func TestWhatIsSavedOutlivesTheTerm(t *testing.T) {
	inBubble(t, func(b *bench) {
		for i := range 3 {
			e, _ := b.candidate(fmt.Sprint("c", i))
			o := b.run(b.Context(), e)
			got, err := o.term.Load(b.Context(), "step")
			if want := strings.Repeat("x", i); err != nil || string(got) != want {
				t.Errorf("loaded %q, %v; want %q", got, err, want)
			}
			testbed.OK(t, o.term.Save(b.Context(), "step", append(got, 'x')))
			if got, err := o.term.Load(b.Context(), "step"); err != nil || len(got) != i+1 {
				t.Errorf("loaded %q, %v after the save", got, err)
			}
			if got, err := o.term.Load(b.Context(), "other"); err != nil || got != nil {
				t.Errorf("another key has %q, %v", got, err)
			}
			o.resign(nil)
		}
	})
}

// TestASaveThatASuccessorMayHaveMissedFails: a leader is paused between the two writes
// of a Save, and its successor begins and loads meanwhile. Save returns an error.
func TestASaveThatASuccessorMayHaveMissedFails(t *testing.T) {
	for _, stop := range []string{"saved/", "term/"} {
		inBubble(t, func(b *bench) {
			values, with := b.flaky()
			a, _ := b.candidate("a", with)
			old := b.run(b.Context(), a)
			c, _ := b.candidate("c")
			next := b.run(b.Context(), c)
			var seen []byte
			values.before = func(name string, _ driver.Value) error {
				if !strings.HasPrefix(name, stop) {
					return nil
				}
				b.space.Revoke("billing")
				var err error
				seen, err = next.leads(0).Load(b.Context(), "step")
				return err
			}
			if !old.term.Valid() {
				t.Fatal("the old leader is to believe that it leads")
			}
			err := old.term.Save(b.Context(), "step", []byte("late"))
			if !errors.Is(err, interlock.ErrStaleToken) {
				t.Errorf("stopped before %s: Save returned %v while the successor had loaded %q", stop, err, seen)
			}
			testbed.OK(t, next.term.Save(b.Context(), "step", []byte("new")))
			old.resign(nil)
			next.resign(nil)
		})
	}
}

// TestALateRequestDoesNotUndoLaterOnes: a late copy of a repeated request does not
// overwrite later ones.
func TestALateRequestDoesNotUndoLaterOnes(t *testing.T) {
	inBubble(t, func(b *bench) {
		values, with := b.flaky()
		e, _ := b.candidate("a", with)
		o := b.run(b.Context(), e)
		watching, _ := b.candidate("w")
		w, stop := b.observe(watching)
		b.saw(w, "a:>")

		var late []driver.Value
		values.after = func(_ string, v driver.Value) error {
			late = append(late, v)
			if len(late) == 1 {
				return doubt("the answer was lost")
			}
			return nil
		}
		for _, data := range []string{"first", "second"} {
			testbed.OK(t, o.term.Proclaim(b.Context(), []byte(data)))
		}
		b.saw(w, "a:first>", "a:second>")
		err := values.Values.Put(b.Context(), "term/"+name, late[0])
		if !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("a late copy of the first request: %v", err)
		}
		b.saw(w)
		o.resign(nil)
		b.saw(w, ":>")
		_ = stop()
	})
}

func TestWritesAreRepeatedWithinBounds(t *testing.T) {
	inBubble(t, func(b *bench) {
		values, with := b.flaky()
		e, _ := b.candidate("a", with)
		o := b.run(b.Context(), e)
		tries := 0
		values.before = func(string, driver.Value) error {
			tries++
			return doubt("no answer")
		}
		if err := o.term.Proclaim(b.Context(), nil); !errors.Is(err, interlock.ErrUncertain) || tries != 6 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		refused := errors.New("no")
		tries = 0
		values.before = func(string, driver.Value) error {
			tries++
			return &interlock.Error{Op: "put", Kind: interlock.Definite, Err: refused}
		}
		if err := o.term.Proclaim(b.Context(), nil); !errors.Is(err, refused) || tries != 1 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		o.resign(nil)

		// A candidate that cannot take office does not keep the leadership.
		err := e.Run(b.Context(), name, func(context.Context, *elect.Term) error {
			t.Error("led without having taken office")
			return nil
		})
		if !errors.Is(err, refused) {
			t.Errorf("Run returned %v", err)
		}
		c, _ := b.candidate("c")
		heir := b.run(b.Context(), c)
		heir.leads(0)
		heir.resign(nil)
	})
}

func TestWhatCannotBeDoneIsRefused(t *testing.T) {
	inBubble(t, func(b *bench) {
		bare, _ := b.candidate("a", func(o *elect.Options) { o.Values = nil })
		o := b.run(b.Context(), bare)
		for what, err := range map[string]error{
			"Proclaim": o.term.Proclaim(b.Context(), nil),
			"HandOver": o.term.HandOver(b.Context(), "c"),
			"Save":     o.term.Save(b.Context(), "k", nil),
		} {
			if interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), "no Values") {
				t.Errorf("%s without Values: %v", what, err)
			}
		}
		o.resign(nil)

		e, _ := b.candidate("a")
		o = b.run(b.Context(), e)
		big := make([]byte, elect.MaxData+1)
		for what, err := range map[string]error{
			"much data":      o.term.Proclaim(b.Context(), big),
			"much to save":   o.term.Save(b.Context(), "k", big),
			"no key":         o.term.Save(b.Context(), "", nil),
			"a slash":        o.term.Save(b.Context(), "a/b", nil),
			"a long key":     o.term.Save(b.Context(), strings.Repeat("k", 33), nil),
			"an odd nominee": b.on(barging{b.space.Open(nil)}, "z").Run(b.Context(), "odd", func(ctx context.Context, t *elect.Term) error { return t.HandOver(ctx, "\xff") }),
			"no name":        e.Run(b.Context(), "", nil),
			"a long name":    e.Observe(b.Context(), strings.Repeat("n", elect.MaxName+1), nil),
		} {
			if err == nil || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := o.term.Proclaim(b.Context(), big[1:]); err != nil {
			t.Errorf("as much as is allowed: %v", err)
		}
		o.resign(nil)
		longest := strings.Repeat("n", elect.MaxName)
		if err := e.Run(b.Context(), longest, func(ctx context.Context, t *elect.Term) error {
			return t.Save(ctx, strings.Repeat("k", 32), nil)
		}); err != nil {
			t.Errorf("the longest name: %v", err)
		}
	})
}

func TestARecordOfSomebodyElseIsNotOverwritten(t *testing.T) {
	inBubble(t, func(b *bench) {
		foreign := driver.Value{Data: []byte("not ours"), Token: 1 << 12, Source: "x"}
		testbed.OK(t, b.space.Values().Put(b.Context(), "term/"+name, foreign))
		e, _ := b.candidate("a")
		err := e.Run(b.Context(), name, func(context.Context, *elect.Term) error { return nil })
		if interlock.Kind(err) != interlock.Definite || !strings.Contains(fmt.Sprint(err), "not that of an election") {
			t.Errorf("Run returned %v", err)
		}
		if v, _ := b.space.Values().Get(b.Context(), "term/"+name); string(v.Data) != "not ours" {
			t.Errorf("it is %q now", v.Data)
		}
	})
}

// promising is a driver with guarantees from the test.
type promising struct {
	*memory.Driver
	g interlock.Guarantees
}

func (p promising) Guarantees() interlock.Guarantees { return p.g }

func TestWeakSystemsAreRefusedUnlessTheWeaknessIsNamed(t *testing.T) {
	const replicated = elect.Required | interlock.ServerClockJump
	const single = interlock.ServerCrash | interlock.Partition
	for _, c := range []struct {
		what      string
		survives  interlock.Faults // exclusion does; tokens survive a crash besides
		alone     bool             // no guarantees between processes
		liveness  interlock.Liveness
		accept    interlock.Faults
		inProcess bool
		unmet     int
	}{
		{what: "a quorum", survives: replicated},
		{what: "asynchronous replicas", survives: single, unmet: 2},
		{what: "asynchronous replicas, accepted", survives: single, accept: interlock.AsyncFailover},
		{what: "and nothing on disk", survives: interlock.Partition, accept: interlock.AsyncFailover, unmet: 1},
		{what: "accepted too", survives: interlock.Partition, accept: interlock.AsyncFailover | interlock.ServerCrash},
		{what: "a connection to one server", survives: interlock.Partition, liveness: interlock.Connection},
		{what: "one that is forgotten", liveness: interlock.Connection, unmet: 2},
		{what: "one process", alone: true, accept: elect.Required, unmet: 1},
		{what: "one process, accepted", alone: true, inProcess: true},
	} {
		d := promising{memory.NewSpace().Open(nil), interlock.Guarantees{Driver: "x", CrossProcess: !c.alone, Liveness: c.liveness,
			ExclusionSurvives: c.survives, TokensSurvive: c.survives | interlock.ServerCrash}}
		e, err := elect.New(d, &elect.Options{Accept: c.accept, InProcess: c.inProcess})
		var unmet *interlock.UnmetError
		switch {
		case errors.As(err, &unmet) && len(unmet.Unmet) == c.unmet && interlock.Kind(err) == interlock.Definite:
		case err != nil || c.unmet > 0:
			t.Errorf("%s: %v, want %d requirements unmet", c.what, err, c.unmet)
		default:
			_ = e.Close(context.Background())
		}
		_ = d.Close(context.Background())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(context.Background())
	for _, o := range []elect.Options{
		{Identity: strings.Repeat("i", 201)}, {StandBack: -1}, {Accept: interlock.DataLoss},
	} {
		o.InProcess = true
		if _, err := elect.New(d, &o); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// blind is a driver that can only lock.
type blind struct{ driver.Fenced }

func TestObservingNeedsADriverThatShows(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(context.Background())
	e, err := elect.New(blind{d}, &elect.Options{InProcess: true})
	testbed.OK(t, err)
	defer e.Close(context.Background())
	var unmet *interlock.UnmetError
	if err := e.Observe(t.Context(), name, nil); !errors.As(err, &unmet) || len(unmet.Unmet) != 2 {
		t.Errorf("%v", err)
	}
}

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
		heir.leads(13 * time.Second)
		if waited := heir.elected.Sub(resigned); waited < 10*time.Second {
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
