package limit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

func lease(t *testing.T, l *limit.Limits, r limit.Rate) *limit.Lease {
	t.Helper()
	s, err := l.Lease("k", r)
	ok(t, err)
	return s
}

// TestLeaseBound: processes with leases that pause at any time admit at most the rate in any interval.
func TestLeaseBound(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := limit.Rate{Count: 100, Period: time.Second, Burst: 20}
		g := &gated{Limiter: memory.NewLimiter()}
		random, begun := rand.New(rand.NewPCG(5, 6)), time.Now()
		var mu sync.Mutex
		var history []time.Duration
		var all sync.WaitGroup
		for range 4 {
			l, err := limit.New(g, nil)
			ok(t, err)
			s, seed := lease(t, l, r), random.Int64()
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				for time.Since(begun) < 20*time.Second {
					ok, err := s.Allow(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					if ok {
						mu.Lock()
						history = append(history, time.Since(begun))
						mu.Unlock()
					}
					switch random.IntN(10) {
					case 0:
						time.Sleep(time.Duration(random.Int64N(int64(400 * time.Millisecond))))
					case 1, 2, 3:
						time.Sleep(time.Duration(random.Int64N(int64(10 * time.Millisecond))))
					default:
						time.Sleep(time.Millisecond)
					}
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for i, first := range history {
			for j := i; j < len(history); j++ {
				length := history[j] - first
				if most := 20 + int(length*100/time.Second); j-i+1 > most {
					t.Fatalf("%d admitted in %v, at most %d may be", j-i+1, length, most)
				}
			}
		}
		if requests := int(g.requests.Load()); len(history) < 1000 || requests > len(history) {
			t.Errorf("%d admitted with %d requests", len(history), requests)
		}
	})
}

func TestLeaseCloses(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l := gate(t, &gated{}, nil)
		r := limit.Rate{Count: 100, Period: time.Hour, Burst: 100}
		s := lease(t, l, r)
		for range 6 { // requests for 1, 2 and 4 units
			if ok, err := s.Allow(t.Context()); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		store := limit.Rate{Count: 100, Period: time.Hour, Burst: 50}
		if d, err := l.Peek(t.Context(), "k", store); err != nil || d.Remaining != 43 {
			t.Errorf("%+v, %v", d, err)
		}
		ok(t, s.Close(t.Context()))
		if d, err := l.Peek(t.Context(), "k", store); err != nil || d.Remaining != 43 { // one unit is left, which may have drained
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := s.Allow(t.Context()); !errors.Is(err, interlock.ErrClosed) {
			t.Error(err)
		}
		many := lease(t, l, r)
		for range 8 {
			if ok, err := many.Allow(t.Context()); err != nil || !ok {
				t.Fatal(ok, err)
			}
		} // of 15
		ok(t, many.Close(t.Context()))
		if d, err := l.Peek(t.Context(), "k", store); err != nil || d.Remaining != 34 { // 43 - 15 + 7 - 1
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// TestLeaseClosesUncounted: units that the store has not counted are not refunded there, because
// others would be admitted by them.
func TestLeaseClosesUncounted(t *testing.T) {
	for name, o := range map[string]limit.Options{
		"admitted by the policy": {OnFailure: limit.Admit},
		"a local share":          {OnFailure: limit.Share, Share: 1, Local: memory.NewLimiter()},
		"shadow":                 {Shadow: true},
	} {
		virtual.Test(t, func(t *testing.T) {
			r, store := limit.PerHour(100), memory.NewLimiter()
			others, err := limit.New(store, nil)
			ok(t, err)
			all := limit.Charge{Key: "k", Rate: limit.Rate{Count: 100, Period: time.Hour, Burst: 50}, Cost: 50}
			_, err = others.Take(t.Context(), all)
			ok(t, err)
			o.Hooks = &observe.Limit{Log: observe.Silent}
			g := &gated{Limiter: store}
			if o.OnFailure != limit.Refuse {
				g.err = errors.New("down")
			}
			l, err := limit.New(g, &o)
			ok(t, err)
			s := lease(t, l, r)
			for range 8 { // of 1 + 2 + 4 + 8
				if admitted, err := s.Allow(t.Context()); err != nil || !admitted {
					t.Fatal(admitted, err)
				}
			}
			g.err = nil
			ok(t, s.Close(t.Context()))
			if d, err := others.Peek(t.Context(), "k", all.Rate); err != nil || d.Remaining > 0 {
				t.Errorf("%s: others are admitted %d more units, %v", name, d.Remaining, err)
			}
		})
	}
}

// TestLeaseClosesLate: a refund that the store executes late returns no units that have drained
// meanwhile, and that others have taken.
func TestLeaseClosesLate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := limit.Rate{Count: 100, Period: time.Second, Burst: 200}
		store := memory.NewLimiter()
		slow := &gated{Limiter: store}
		mine, err := limit.New(slow, nil)
		ok(t, err)
		others, err := limit.New(store, nil)
		ok(t, err)
		s := lease(t, mine, r)
		for range 64 { // of 1 + 2 + 4 + … + 64
			if ok, err := s.Allow(t.Context()); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		slow.latency = 900 * time.Millisecond
		closed := make(chan error, 1)
		go func() { closed <- s.Close(t.Context()) }()
		synctest.Wait()
		time.Sleep(800 * time.Millisecond)
		half := limit.Rate{Count: 100, Period: time.Second, Burst: 100}
		take := func() int64 {
			d, err := others.Take(t.Context(), limit.Charge{Key: "k", Rate: half, Cost: 100, Least: 1})
			ok(t, err)
			return d.Granted
		}
		n := take()
		ok(t, <-closed)
		if n += take(); n > 100+10 { // in 0.1 s
			t.Errorf("others were admitted %d units within 0.1 s, at most 110 are", n)
		}
	})
}

// TestLeaseCompetition: goroutines that share a lease take each unit once.
func TestLeaseCompetition(t *testing.T) {
	s := lease(t, gate(t, &gated{}, nil), limit.PerHour(1000)) // the store has a burst of 500
	var admitted atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				ok, err := s.Allow(t.Context())
				if err != nil {
					t.Error(err)
				}
				if !ok {
					return
				}
				admitted.Add(1)
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n < 500 || n > 501 { // one may have drained
		t.Errorf("%d units of 500", n)
	}
	ok(t, s.Close(t.Context()))
}

// TestLeaseRefused: after a refusal a lease sends no request before a unit is due. The hook receives each refused call.
func TestLeaseRefused(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{}
		refused := 0
		hooks := &observe.Limit{Refused: func(e observe.LimitRefused) {
			if refused++; e.Key != "k" {
				t.Errorf("%+v", e)
			}
		}}
		s := lease(t, gate(t, g, &limit.Options{Hooks: hooks}), limit.Rate{Count: 2, Period: time.Second})
		want := func(admitted bool, requests int64) {
			t.Helper()
			if ok, err := s.Allow(t.Context()); ok != admitted || err != nil || g.requests.Load() != requests {
				t.Errorf("%v, %v after %d requests", ok, err, g.requests.Load())
			}
		}
		want(true, 1)
		for range 10 {
			want(false, 2)
		}
		if refused != 10 {
			t.Errorf("%d of 10 refused calls were reported", refused)
		}
		time.Sleep(500 * time.Millisecond)
		want(true, 3)
	})
}

// TestLeaseCaller: if a caller leaves, the request continues for the others.
func TestLeaseCaller(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{gate: make(chan struct{})}
		s := lease(t, gate(t, g, nil), limit.PerHour(100))
		ctx, cancel := context.WithCancel(t.Context())
		gone, served := make(chan error, 1), make(chan bool, 1)
		go func() {
			_, err := s.Allow(ctx)
			gone <- err
		}()
		synctest.Wait()
		go func() {
			ok, _ := s.Allow(t.Context())
			served <- ok
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(g.gate)
		if !<-served || g.requests.Load() != 1 {
			t.Errorf("%d requests", g.requests.Load())
		}
	})
}

// TestLeaseOfASlowStore: if units expire before they arrive, a call fails in place of asking for ever.
func TestLeaseOfASlowStore(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{latency: 5 * time.Millisecond}
		s := lease(t, gate(t, g, nil), limit.Rate{Count: 1000, Period: time.Second, Burst: 2})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Allow(ctx); interlock.Kind(err) != interlock.Retryable || ctx.Err() != nil {
			t.Errorf("after %d requests: %v", g.requests.Load(), err)
		}
	})
}

// TestLeaseFailurePolicy: the policy applies if the store does not decide, also without a Timeout.
func TestLeaseFailurePolicy(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{Limiter: hanging{}}
		l, err := limit.New(g, &limit.Options{OnFailure: limit.Admit, Hooks: &observe.Limit{Log: observe.Silent}})
		ok(t, err)
		if admitted, err := lease(t, l, limit.PerHour(100)).Allow(t.Context()); !admitted || err != nil {
			t.Errorf("%v, %v", admitted, err)
		}
	})
}

// hanging is a store that does not answer.
type hanging struct{}

func (hanging) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	<-ctx.Done()
	answers := make([]driver.LimitAnswer, len(calls))
	for i := range answers {
		answers[i].Err = context.Cause(ctx)
	}
	return answers
}

func TestLeaseRefuses(t *testing.T) {
	l := gate(t, &gated{}, nil)
	for _, r := range []limit.Rate{{}, limit.PerHour(1), {Count: 10, Period: time.Second, Algorithm: limit.SlidingLog}} {
		if _, err := l.Lease("k", r); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
