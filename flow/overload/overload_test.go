package overload

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

func TestOptions(t *testing.T) {
	for _, o := range []Options{{MinRunning: -1}, {MinRunning: 30, FirstRunning: 20}, {MaxRunning: 10, FirstRunning: 20}, {MaxRunning: math.MaxInt},
		{Target: time.Second}, {Target: -1}, {MaxWait: -1}, {Attempts: -1}, {Backoff: -1}, {Hedge: -1}, {Retries: 2}, {Retries: math.NaN()}} {
		if _, err := New(&o); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []Options{{MinRunning: 500}, {MaxRunning: 3}, {MaxWait: time.Millisecond}, {MaxWaiting: -1, MaxLatency: -1, Retries: -1, OpenFor: -1}} {
		policy(t, &o)
	}
}

// admitted begins a call, and returns a function that waits for its result.
func admitted(ctx context.Context, p *Policy) (result func() (done func(), err error)) {
	var done func()
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done, err = p.Admit(ctx)
	}()
	synctest.Wait()
	return func() (func(), error) {
		<-ended
		return done, err
	}
}

func reasonOf(err error) string {
	if rejected, found := errors.AsType[*RejectedError](err); found {
		return rejected.Reason
	}
	return ""
}

// single returns a server that runs one call at a time, and has begun one.
func single(t *testing.T, o Options) (p *Policy, done func()) {
	t.Helper()
	o.MaxRunning = 1
	p = policy(t, &o)
	done, err := p.Admit(t.Context())
	ok(t, err)
	return p, done
}

// TestOrder: waiting calls run by class, and in order; once the queue is standing, the newest is
// first, and new calls wait for Target only.
func TestOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, done := single(t, Options{MaxWait: 100 * time.Millisecond})
		var order []string
		var mu sync.Mutex
		var all sync.WaitGroup
		wait := func(name string, c Class) {
			result := admitted(WithClass(t.Context(), c), p)
			all.Go(func() {
				done, err := result()
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					name += " rejected"
				} else {
					defer done()
				}
				order = append(order, name)
			})
		}
		expect := func(want ...string) {
			t.Helper()
			all.Wait()
			if !slices.Equal(order, want) {
				t.Fatalf("the order is %q, want %q", order, want)
			}
			order = nil
		}
		wait("batch", Sheddable)
		wait("first", Critical)
		wait("second", Critical)
		wait("user", CriticalPlus)
		done()
		expect("user", "first", "second", "batch")

		again, err := p.Admit(t.Context())
		ok(t, err)
		wait("old", Critical)
		time.Sleep(60 * time.Millisecond)
		wait("older", Critical)
		time.Sleep(39 * time.Millisecond)
		wait("newer", Critical)
		time.Sleep(30 * time.Millisecond) // old has waited for too long, and the queue is standing
		wait("newest", Critical)
		again()
		expect("old rejected", "newest", "newer", "older")

		again, err = p.Admit(t.Context())
		ok(t, err)
		wait("first", Critical)
		time.Sleep(99 * time.Millisecond)
		wait("second", Critical)
		time.Sleep(time.Millisecond)
		wait("impatient", Critical)
		time.Sleep(10 * time.Millisecond)
		again()
		expect("first rejected", "impatient rejected", "second")
		if s := p.Stats(); s != (Stats{Limit: 1}) {
			t.Errorf("in the end %+v", s)
		}
	})
}

// TestFull: a full queue rejects the least critical call.
func TestFull(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, done := single(t, Options{MaxWaiting: 2})
		old := admitted(WithClass(t.Context(), Sheddable), p)
		young := admitted(WithClass(t.Context(), Sheddable), p)
		if _, err := admitted(WithClass(t.Context(), Sheddable), p)(); reasonOf(err) != "too many calls wait" || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("a third: %v", err)
		}
		user := admitted(t.Context(), p)
		if _, err := old(); reasonOf(err) == "" {
			t.Errorf("the oldest sheddable call: %v", err)
		}
		if s := p.Stats(); s.Waiting != 2 || s.Running != 1 {
			t.Errorf("%+v", s)
		}
		done()
		next, err := user()
		ok(t, err)
		next()
		if next, err = young(); err != nil {
			t.Fatal(err)
		}
		next()
		next() // does nothing
		if s := p.Stats(); s.Waiting != 0 || s.Running != 0 {
			t.Errorf("%+v", s)
		}
		none, done := single(t, Options{MaxWaiting: -1})
		if _, err := none.Admit(t.Context()); reasonOf(err) == "" {
			t.Errorf("without a queue: %v", err)
		}
		done()
	})
}

// TestDeadlines: a call that would end after its deadline is rejected on arrival, or when its turn
// comes.
func TestDeadlines(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, &Options{MaxRunning: 2})
		call := func(took time.Duration) {
			done, err := p.Admit(t.Context())
			ok(t, err)
			time.Sleep(took)
			done()
		}
		for range 50 {
			call(80 * time.Millisecond)
		}
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		done, err := p.Admit(within(90 * time.Millisecond))
		ok(t, err)
		if _, err := p.Admit(within(70 * time.Millisecond)); reasonOf(err) != "its deadline is nearer than a call takes" {
			t.Errorf("a deadline in 70 ms: %v", err)
		}
		other, err := p.Admit(t.Context())
		ok(t, err)
		late, fine := admitted(within(90*time.Millisecond), p), admitted(t.Context(), p)
		time.Sleep(20 * time.Millisecond)
		done()
		if _, err := late(); reasonOf(err) == "" {
			t.Errorf("a deadline that is near now: %v", err)
		}
		if done, err = fine(); err != nil {
			t.Fatal(err)
		}
		// A cancelled call leaves the queue, and a call that has already ended does not begin.
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		waits := admitted(ctx, p)
		cancel(gone)
		if _, err := waits(); !errors.Is(err, gone) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("cancelled: %v", err)
		}
		if _, err := p.Admit(ctx); !errors.Is(err, gone) {
			t.Errorf("cancelled before: %v", err)
		}
		ctx, cancel = context.WithCancelCause(t.Context())
		waits = admitted(ctx, p)
		done() // it may begin, while its caller leaves
		cancel(gone)
		if _, err := waits(); !errors.Is(err, gone) {
			t.Errorf("cancelled when it may begin: %v", err)
		}
		other()
		if s := p.Stats(); s.Waiting != 0 || s.Running != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestDeadlinesAfterIncident: after calls took longer than any deadline, the policy measures the
// latency again.
func TestDeadlinesAfterIncident(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, took := policy(t, nil), 3*time.Second
		call := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			done, err := p.Admit(ctx)
			if err != nil {
				return err
			}
			defer done()
			time.Sleep(took)
			return nil
		}
		for range 100 {
			_ = call()
		}
		took = 10 * time.Millisecond
		for range 20 {
			_ = call()
		}
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if err := call(); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
	})
}

// TestRail: if each second is a little slower than the previous one, the adaptive limit follows
// the latency. The absolute limit does not.
func TestRail(t *testing.T) {
	slow := func(o Options) (running int) {
		virtual.Test(t, func(t *testing.T) {
			p := policy(t, &o)
			var calls sync.WaitGroup
			took := 100 * time.Millisecond
			for begun := time.Now(); time.Since(begun) < 5*time.Minute; {
				if done, err := p.Admit(t.Context()); err == nil {
					took = min(3*time.Second, took*10001/10000)
					end := time.Now().Add(took)
					calls.Go(func() {
						time.Sleep(time.Until(end))
						done()
					})
				}
			}
			running = p.Stats().Running
			calls.Wait()
		})
		return running
	}
	if with, without := slow(Options{}), slow(Options{MaxLatency: -1}); with > 2 || without < 10 {
		t.Errorf("of calls of 3 s, %d run at once; without MaxLatency %d", with, without)
	}
}

// TestRailRecovers: a rail that lowered its limit raises it again.
func TestRailRecovers(t *testing.T) {
	r, now := rail{latency: time.Second, least: 2, most: 50, limit: 50}, time.Unix(0, 0)
	window := func(slow int) int {
		for i := range 20 {
			now = now.Add(time.Second / 10)
			took := time.Millisecond
			if i < slow {
				took = 2 * time.Second
			}
			r.record(now, took, 10)
		}
		return r.limit
	}
	if got := window(1); got != 50 {
		t.Errorf("a tenth of the calls is slow: %d", got)
	}
	if got := window(10); got >= 10 {
		t.Errorf("half of ten calls at once are slow: %d", got)
	}
	for range 30 {
		window(20)
	}
	if r.limit != 2 {
		t.Errorf("all are slow for long: %d", r.limit)
	}
	for range 60 {
		window(0)
	}
	if r.limit != 50 {
		t.Errorf("all are fast again: %d", r.limit)
	}
}
