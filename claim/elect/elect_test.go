package elect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	name = "billing"
	ttl  = 6 * time.Second
)

// bench is one space and the candidates on it, in virtual time.
type bench struct {
	*testing.T
	space *memory.Space
}

func inBubble(t *testing.T, test func(*bench)) {
	virtual.Test(t, func(t *testing.T) {
		test(&bench{t, memory.NewSpace()})
	})
}

// candidate opens a driver with elections on it, both closed at the end.
func (b *bench) candidate(identity string, change ...func(*elect.Options)) (*elect.Election, *memory.Driver) {
	b.Helper()
	d := b.space.Open(&memory.Options{TTL: ttl})
	return b.on(d, identity, change...), d
}

func (b *bench) on(d driver.Fenced, identity string, change ...func(*elect.Options)) *elect.Election {
	b.Helper()
	o := &elect.Options{Identity: identity, Values: b.space.Values(), InProcess: true}
	for _, f := range change {
		f(o)
	}
	e, err := elect.New(d, o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	testbed.CloseAfter(b, e)
	return e
}

// office is a candidate that runs in the background and leads until the test ends it.
type office struct {
	*bench
	term    *elect.Term
	ctx     context.Context
	elected time.Time
	begun   chan struct{}
	end     chan error
	done    chan struct{}
	err     error
}

func (b *bench) run(ctx context.Context, e *elect.Election) *office {
	o := &office{bench: b, begun: make(chan struct{}), end: make(chan error, 1), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = e.Run(ctx, name, func(ctx context.Context, t *elect.Term) error {
			o.term, o.ctx, o.elected = t, ctx, time.Now()
			close(o.begun)
			return <-o.end
		})
	}()
	b.Cleanup(func() {
		select {
		case o.end <- errors.New("the test is over"):
		default: // the test has ended it already
		}
	})
	synctest.Wait()
	return o
}

// leads fails the test unless o leads now, or within a time.
func (o *office) leads(within time.Duration) *elect.Term {
	o.Helper()
	time.Sleep(within)
	synctest.Wait()
	select {
	case <-o.begun:
	default:
		o.Fatalf("not elected within %v", within)
	}
	return o.term
}

func (o *office) waits() {
	o.Helper()
	synctest.Wait()
	select {
	case <-o.begun:
		o.Fatal("elected too early")
	default:
	}
}

// resign ends the leader's function and returns Run's error.
func (o *office) resign(err error) error {
	o.end <- err
	<-o.done
	return o.err
}

func TestALeaderLeadsUntilItsFunctionReturns(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, _ := b.candidate("a")
		c, _ := b.candidate("c")
		ctx, cancel := context.WithCancelCause(b.Context())
		first, second := b.run(ctx, a), b.run(b.Context(), c)
		term := first.leads(0)
		if !term.Valid() || term.Name() != name || !strings.HasPrefix(term.Owner(), "a/") {
			t.Errorf("term of %s on %s, valid %v", term.Owner(), term.Name(), term.Valid())
		}
		boom := errors.New("boom")
		cancel(boom)
		time.Sleep(10 * ttl) // the function ignores the end of its context
		second.waits()
		if cause := context.Cause(first.ctx); cause != boom {
			t.Errorf("the leader's context ended because of %v", cause)
		}
		if !term.Valid() || term.Context().Err() != nil {
			t.Error("the term ended with the caller's context")
		}
		if err := first.resign(boom); err != boom {
			t.Errorf("Run returned %v", err)
		}
		if next := second.leads(0); next.Token() <= term.Token() {
			t.Errorf("token %d after %d", next.Token(), term.Token())
		}
		testbed.OK(t, second.resign(nil))
	})
}

func TestALostLeadershipIsToldAndNotReleased(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, _ := b.candidate("a")
		c, _ := b.candidate("c")
		first, second := b.run(b.Context(), a), b.run(b.Context(), c)
		first.leads(0)
		b.space.Revoke(name)
		second.leads(0)
		time.Sleep(ttl)
		if cause := context.Cause(first.ctx); !errors.Is(cause, interlock.ErrLost) {
			t.Errorf("the leader's context ended because of %v", cause)
		}
		boom := errors.New("boom")
		err := first.resign(boom)
		if !errors.Is(err, boom) || !errors.Is(err, interlock.ErrLost) {
			t.Errorf("Run returned %v", err)
		}
		if !second.term.Valid() {
			t.Error("the loser's return ended the successor's term")
		}
		second.resign(nil)
	})
}

func TestAPanicGivesTheLeadershipUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		var told []string
		a, _ := b.candidate("a", func(o *elect.Options) {
			o.Hooks = &elect.Hooks{
				Elected: func(e elect.Elected) { told = append(told, fmt.Sprint("elected after ", e.Wait)) },
				Ended:   func(e elect.Ended) { told = append(told, fmt.Sprint("ended after ", e.Held, ": ", e.Cause)) },
			}
		})
		defer func() {
			if want := []string{"elected after 0s", "ended after 1s: claim released"}; !slices.Equal(told, want) {
				t.Errorf("the hooks received %q, want %q", told, want)
			}
		}()
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not come through")
				}
			}()
			_ = a.Run(b.Context(), name, func(context.Context, *elect.Term) error {
				time.Sleep(time.Second)
				panic("boom")
			})
		}()
		c, _ := b.candidate("c")
		o := b.run(b.Context(), c)
		o.leads(0)
		o.resign(nil)
	})
}

// watcher collects what an observer receives.
type watcher struct {
	mu   sync.Mutex
	seen []string
	last elect.Leader
}

func (w *watcher) told(l elect.Leader) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = l
	w.seen = append(w.seen, fmt.Sprintf("%s:%s>%s", l.Identity, l.Data, l.Nominee))
}

func (b *bench) observe(e *elect.Election) (w *watcher, stop func() error) {
	ctx, cancel := context.WithCancel(b.Context())
	w = &watcher{}
	done := make(chan error, 1)
	go func() { done <- e.Observe(ctx, name, w.told) }()
	synctest.Wait()
	return w, func() error { cancel(); return <-done }
}

func (b *bench) saw(w *watcher, want ...string) {
	b.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.seen, want) {
		b.Errorf("observed %q, want %q", w.seen, want)
	}
	w.seen = nil
}

func TestObserversSeeBeginningDataAndEnd(t *testing.T) {
	inBubble(t, func(b *bench) {
		watching, _ := b.candidate("w")
		w, stop := b.observe(watching)
		b.saw(w, ":>")
		a, _ := b.candidate("a")
		o := b.run(b.Context(), a)
		b.saw(w, "a:>")
		if w.last.Token != o.term.Token() || w.last.Owner != o.term.Owner() || !w.last.Since.Equal(o.elected) {
			t.Errorf("observed %+v, want token %d of %s since %v", w.last, o.term.Token(), o.term.Owner(), o.elected)
		}
		testbed.OK(t, o.term.Proclaim(b.Context(), []byte("10.0.0.1:80")))
		b.saw(w, "a:10.0.0.1:80>")
		time.Sleep(10 * ttl) // renewals change nothing
		b.saw(w)
		o.resign(nil)
		b.saw(w, ":>")

		// Observers see the death of a leader when its lease expires, without an event.
		c, dying := b.candidate("c")
		o = b.run(b.Context(), c)
		b.saw(w, "c:>")
		_ = dying.Close(b.Context())
		time.Sleep(ttl + time.Second)
		b.saw(w, ":>")
		o.resign(nil)
		b.saw(w)
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Observe returned %v", err)
		}
	})
}

// TestALockIsNoLeadership: with Values, a holder of the lock that has not taken office
// does not lead.
func TestALockIsNoLeadership(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, d := b.candidate("a")
		w, stop := b.observe(a)
		o := b.run(b.Context(), a)
		o.resign(nil)
		b.saw(w, ":>", "a:>", ":>")
		locks, err := lock.NewFenced(d, nil)
		testbed.OK(t, err)
		defer locks.Close(context.Background())
		c, err := locks.Acquire(b.Context(), name)
		testbed.OK(t, err)
		b.saw(w)
		testbed.OK(t, c.Release(b.Context()))
		b.saw(w)
		_ = stop()
	})
}

// deaf is a driver that never sends a hint.
type deaf struct{ *memory.Driver }

func (d deaf) Watch(ctx context.Context, _ string, changed func(string)) error {
	changed("")
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestObserversLookWhenALeaseIsOver(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, dying := b.candidate("a")
		o := b.run(b.Context(), a)
		w, stop := b.observe(b.on(deaf{b.space.Open(nil)}, "w"))
		b.saw(w, "a:>")
		time.Sleep(3 * ttl) // the leader renews, so that nothing changes
		b.saw(w)
		_ = dying.Close(b.Context())
		time.Sleep(2 * ttl)
		b.saw(w, ":>")
		o.resign(nil)
		_ = stop()
	})
}

func TestCloseEndsCandidatesAndObservers(t *testing.T) {
	inBubble(t, func(b *bench) {
		a, _ := b.candidate("a")
		c, _ := b.candidate("c")
		leader, waiter := b.run(b.Context(), a), b.run(b.Context(), c)
		watching := make(chan error, 1)
		go func() { watching <- c.Observe(b.Context(), name, func(elect.Leader) {}) }()
		synctest.Wait()
		testbed.OK(t, c.Close(b.Context()))
		<-waiter.done
		for what, err := range map[string]error{"Run": waiter.err, "Observe": <-watching,
			"Observe after Close": c.Observe(b.Context(), name, func(elect.Leader) {})} {
			if !errors.Is(err, interlock.ErrClosed) {
				t.Errorf("%s returned %v", what, err)
			}
		}
		leader.resign(nil)
	})
}

// TestCloseEndsPausesOfCandidates: of one that stands back, and of one whose values do not answer.
func TestCloseEndsPausesOfCandidates(t *testing.T) {
	for what, campaign := range map[string]func(*bench) (*elect.Election, *office){
		"stands back": func(b *bench) (*elect.Election, *office) {
			patient := func(o *elect.Options) { o.StandBack = time.Hour }
			leader := b.run(b.Context(), b.on(barging{b.space.Open(&memory.Options{TTL: ttl})}, "a", patient))
			leader.leads(0)
			testbed.OK(b, leader.term.HandOver(b.Context(), "nobody"))
			e := b.on(barging{b.space.Open(&memory.Options{TTL: ttl})}, "b", patient)
			heir := b.run(b.Context(), e)
			leader.resign(nil)
			time.Sleep(10 * time.Minute) // the pauses have grown
			return e, heir
		},
		"takes office": func(b *bench) (*elect.Election, *office) {
			values := &silent{Values: b.space.Values()}
			values.hushed.Store(true)
			e, _ := b.candidate("a", func(o *elect.Options) { o.Values = values })
			return e, b.run(b.Context(), e)
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				e, o := campaign(b)
				testbed.OK(b, e.Close(b.Context()))
				synctest.Wait()
				closed := time.Now()
				<-o.done
				if late := time.Since(closed); late > 0 || !errors.Is(o.err, interlock.ErrClosed) {
					b.Errorf("Run ended %v after Close: %v", late, o.err)
				}
			})
		})
	}
}

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
