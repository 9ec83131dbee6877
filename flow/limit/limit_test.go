package limit_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

// gated is a store in memory that counts its requests, and blocks them at a gate.
type gated struct {
	driver.Limiter
	requests, calls atomic.Int64
	gate            chan struct{} // nil is open
	latency         time.Duration
	err             error
}

func (g *gated) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	g.requests.Add(1)
	g.calls.Add(int64(len(calls)))
	time.Sleep(g.latency)
	if g.gate != nil {
		<-g.gate
	}
	if g.err == nil {
		return g.Limiter.Take(ctx, calls)
	}
	answers := make([]driver.LimitAnswer, len(calls))
	for i := range answers {
		answers[i].Err = g.err
	}
	return answers
}

func gate(t *testing.T, g *gated, o *limit.Options) *limit.Limits {
	t.Helper()
	g.Limiter = memory.NewLimiter()
	l, err := limit.New(g, o)
	ok(t, err)
	return l
}

// lossy answers no call for the key "lost" before its context ends.
type lossy struct{ driver.Limiter }

func (l lossy) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	if calls[0][0].Key == "lost" {
		<-ctx.Done()
	}
	return l.Limiter.Take(ctx, calls)
}

// TestUnanswered: callers who wait for ever for answers that are lost do not block others for ever.
func TestUnanswered(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l, err := limit.New(lossy{memory.NewLimiter()}, nil)
		ok(t, err)
		patient, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := l.Allow(patient, "lost", limit.PerHour(1)); err == nil {
					t.Error("it was answered")
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if d, err := l.Allow(ctx, "k", limit.PerHour(1)); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		leave()
		all.Wait()
		ok(t, l.Close(t.Context()))
	})
}

// TestCoalesced: waiting calls share a request, those of a key a charge, and each gets the answer that it
// would get alone.
func TestCoalesced(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{gate: make(chan struct{})}
		l := gate(t, g, nil)
		var all sync.WaitGroup
		var allowed, cold atomic.Int64
		remaining := make([]atomic.Int64, 40)
		for i := range 102 { // the first two go alone
			all.Go(func() {
				d, err := l.Allow(t.Context(), "hot", limit.PerHour(40))
				if err != nil || d.Allowed != (d.RetryAfter == 0) {
					t.Errorf("call %d: %+v, %v", i, d, err)
				}
				if d.Allowed {
					allowed.Add(1)
					remaining[d.Remaining].Add(1)
				}
			})
			synctest.Wait()
		}
		all.Go(func() {
			if d, err := l.Take(t.Context(), limit.Charge{Key: "cold", Rate: limit.PerHour(5), Cost: 3}); err == nil && d.Allowed && d.Remaining == 2 {
				cold.Add(1)
			}
		})
		synctest.Wait()
		close(g.gate)
		all.Wait()
		if g.requests.Load() != 3 || g.calls.Load() != 4 || allowed.Load() != 40 || cold.Load() != 1 {
			t.Errorf("%d requests with %d calls; %d and %d allowed", g.requests.Load(), g.calls.Load(), allowed.Load(), cold.Load())
		}
		for i := range remaining {
			if n := remaining[i].Load(); n != 1 {
				t.Errorf("%d calls left %d units", n, i)
			}
		}
	})
}

// TestAllocations bounds the allocations of calls that share a request.
func TestAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		key  func(i int) string
		most float64
	}{"one key": {func(int) string { return "k" }, 3}, "a key each": {strconv.Itoa, 6}} {
		const callers, each = 64, 200
		l, err := limit.New(yielding{memory.NewLimiter()}, nil)
		ok(t, err)
		n := testing.AllocsPerRun(5, func() {
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					key := c.key(i)
					for range each {
						if d, err := l.Allow(t.Context(), key, limit.PerSecond(1_000_000)); err != nil || !d.Allowed {
							t.Errorf("%+v, %v", d, err)
						}
					}
				})
			}
			all.Wait()
		})
		t.Logf("%s: %.1f allocations a call", name, n/callers/each)
		if n /= callers * each; n > c.most && !testbed.Race {
			t.Errorf("%s: %.1f allocations a call, at most %v are", name, n, c.most)
		}
	}
}

// yielding is a store that lets other goroutines run during a request.
type yielding struct{ driver.Limiter }

func (y yielding) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	for range 64 {
		runtime.Gosched()
	}
	return y.Limiter.Take(ctx, calls)
}

// TestCallerGone: a caller that leaves while its call waits consumes nothing; after the request was sent
// the outcome is unknown.
func TestCallerGone(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{gate: make(chan struct{})}
		l := gate(t, g, nil)
		var others sync.WaitGroup
		allow := func() { _, _ = l.Allow(t.Context(), "k", limit.PerHour(10)) }
		others.Go(allow)
		others.Go(allow)
		synctest.Wait()
		errs := make(chan error, 2)
		leave := func() (cancel func()) {
			ctx, cancel := context.WithCancel(t.Context())
			others.Go(func() {
				_, err := l.Allow(ctx, "k", limit.PerHour(10))
				errs <- err
			})
			synctest.Wait()
			return cancel
		}
		leave()()
		if err := <-errs; interlock.Kind(err) != interlock.Definite {
			t.Errorf("gone while it waited: %v", err)
		}
		cancel := leave()
		g.gate <- struct{}{} // the first ends, and what waits is sent
		synctest.Wait()
		cancel()
		if err := <-errs; interlock.Kind(err) != interlock.Uncertain || err.Error() != `limit "k": outcome unknown, its units may be counted: context canceled` {
			t.Errorf("gone when it was sent: %v", err)
		}
		close(g.gate)
		others.Wait()
		synctest.Wait()
		if d, err := l.Peek(t.Context(), "k", limit.PerHour(10)); err != nil || d.Remaining != 7 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// TestDenied: calls for an exhausted limit are refused without a request until its next unit is due.
func TestDenied(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{}
		l := gate(t, g, nil)
		allow := func(key string) limit.Decision {
			t.Helper()
			d, err := l.Allow(t.Context(), key, limit.Rate{Count: 1, Period: time.Second})
			ok(t, err)
			return d
		}
		allow("k")
		for range 100 {
			if d := allow("k"); d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second {
				t.Fatalf("%+v", d)
			}
		}
		if n := g.requests.Load(); n != 2 {
			t.Errorf("%d requests", n)
		}
		if d := allow("other"); !d.Allowed {
			t.Errorf("another key: %+v", d)
		}
		if d, err := l.Allow(t.Context(), "k", limit.PerSecond(2)); err != nil || !d.Allowed {
			t.Errorf("at another rate: %+v, %v", d, err)
		}
		time.Sleep(time.Second)
		if d := allow("k"); !d.Allowed {
			t.Errorf("when a unit is due: %+v", d)
		}
		allow("k")
		ok(t, l.Refund(t.Context(), "k", limit.PerSecond(1), 1))
		if d := allow("k"); !d.Allowed {
			t.Errorf("after a refund: %+v", d)
		}
	})
}

// TestDeniedForAMinute: what another process refunds to an exhausted limit is admitted a minute later,
// however long its period is.
func TestDeniedForAMinute(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g := &gated{}
		l, r := gate(t, g, nil), limit.Rate{Count: 2, Period: 24 * time.Hour}
		s := lease(t, l, r) // the store has a burst of 1
		other, err := limit.New(g.Limiter, nil)
		ok(t, err)
		store := limit.Rate{Count: 2, Period: 24 * time.Hour, Burst: 1}
		for i := range 3 {
			if admitted, err := s.Allow(t.Context()); err != nil || admitted != (i == 0) {
				t.Fatal(admitted, err)
			}
		}
		ok(t, other.Refund(t.Context(), "k", store, 1))
		time.Sleep(59 * time.Second)
		if d, err := l.Allow(t.Context(), "k", store); err != nil || d.Allowed || d.RetryAfter != 12*time.Hour-59*time.Second || g.requests.Load() != 2 {
			t.Errorf("%+v, %v after %d requests", d, err, g.requests.Load())
		}
		time.Sleep(time.Second)
		if admitted, err := s.Allow(t.Context()); err != nil || !admitted {
			t.Errorf("a lease after a refund: %v, %v", admitted, err)
		}
		if d, err := l.Allow(t.Context(), "k", store); err != nil || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		ok(t, other.Refund(t.Context(), "k", store, 1))
		time.Sleep(time.Minute)
		if d, err := l.Allow(t.Context(), "k", store); err != nil || !d.Allowed {
			t.Errorf("after a refund: %+v, %v", d, err)
		}
	})
}

// TestDeniedUnits: a call for several units is refused until the store has as many, not until it has one.
func TestDeniedUnits(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l, r := gate(t, &gated{}, nil), limit.Rate{Count: 1, Period: time.Second, Burst: 10}
		for _, c := range []struct {
			cost int64
			wait time.Duration
		}{{10, 0}, {1, time.Second}, {10, 10 * time.Second}, {1, time.Second}} {
			d, err := l.Take(t.Context(), limit.Charge{Key: "k", Rate: r, Cost: c.cost})
			if ok(t, err); d.RetryAfter != c.wait {
				t.Errorf("%d units after %v, want %v", c.cost, d.RetryAfter, c.wait)
			}
		}
	})
}

func TestWait(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l := gate(t, &gated{}, nil)
		begun := time.Now()
		for range 31 {
			ok(t, l.Wait(t.Context(), "k", limit.Rate{Count: 10, Period: time.Second, Burst: 1}))
		}
		if took := time.Since(begun); took < 3*time.Second || took > 3*time.Second+time.Millisecond {
			t.Errorf("31 units at 10/s took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ok(t, l.Wait(ctx, "h", limit.PerHour(1)))
		if err := l.Wait(ctx, "h", limit.PerHour(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// TestWaitSeesRefunds: a call that waits takes a unit that another process refunds, long before the next one is due.
func TestWaitSeesRefunds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		g, r := &gated{}, limit.PerHour(1)
		l := gate(t, g, nil)
		other, err := limit.New(g.Limiter, nil)
		ok(t, err)
		ok(t, l.Wait(t.Context(), "k", r))
		begun, refunded := time.Now(), make(chan error, 1)
		time.AfterFunc(10*time.Minute, func() { refunded <- other.Refund(t.Context(), "k", r, 1) })
		ok(t, l.Wait(t.Context(), "k", r))
		ok(t, <-refunded)
		if took := time.Since(begun); took > 11*time.Minute {
			t.Errorf("it waited for %v", took)
		}
	})
}

func TestFailure(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		down := errors.New("down")
		r := limit.PerHour(10)
		for _, c := range []struct {
			o       limit.Options
			allowed int
			fails   bool
		}{
			{limit.Options{}, 0, true},
			{limit.Options{OnFailure: limit.Admit}, 20, false},
			{limit.Options{OnFailure: limit.Share, Share: 0.5, Local: memory.NewLimiter()}, 5, false},
		} {
			reported := 0
			c.o.Hooks = &observe.Limit{Failed: func(e observe.LimitFailed) {
				if reported++; e.Key != "k" || !errors.Is(e.Err, down) {
					t.Errorf("%+v", e)
				}
			}}
			l := gate(t, &gated{err: down}, &c.o)
			allowed := 0
			for range 20 {
				d, err := l.Take(t.Context(), limit.Charge{Key: "k", Rate: r}, limit.Charge{Key: "taken", Rate: r, Cost: 1})
				if (err != nil) != c.fails || err != nil && !errors.Is(err, down) {
					t.Errorf("%+v: %v", c.o.OnFailure, err)
				}
				if d.Allowed {
					allowed++
				}
			}
			if allowed != c.allowed || reported != 20 {
				t.Errorf("%v: %d allowed, %d reported", c.o.OnFailure, allowed, reported)
			}
			if _, err := l.Allow(t.Context(), "k", limit.Rate{}); interlock.Kind(err) != interlock.Bug {
				t.Errorf("%v: a bad rate: %v", c.o.OnFailure, err)
			}
			if d, _ := l.Take(t.Context(), limit.Charge{Key: "k", Rate: r, Cost: 6}); c.o.OnFailure == limit.Share && (d.Allowed || d.RetryAfter != time.Second) {
				t.Errorf("a charge above the share: %+v", d)
			}
		}
		g := &gated{gate: make(chan struct{})}
		l := gate(t, g, &limit.Options{Timeout: 25 * time.Millisecond, OnFailure: limit.Admit})
		go func() { _, _ = l.Allow(t.Context(), "k", r) }()
		go func() { _, _ = l.Allow(t.Context(), "k", r) }()
		synctest.Wait()
		begun := time.Now()
		if d, err := l.Allow(t.Context(), "k", r); err != nil || !d.Allowed || time.Since(begun) != 25*time.Millisecond {
			t.Errorf("after %v: %+v, %v", time.Since(begun), d, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if d, err := l.Allow(ctx, "k", r); err == nil || d.Allowed {
			t.Errorf("the caller has gone: %+v, %v", d, err)
		}
		close(g.gate)
	})
}

// TestShareOfALargeRate: a share is admitted although its exact count has no large factor in common with the
// period.
func TestShareOfALargeRate(t *testing.T) {
	r := limit.Rate{Count: 10_000_000, Period: 24 * time.Hour}
	l := gate(t, &gated{err: errors.New("down")}, &limit.Options{OnFailure: limit.Share, Share: 1. / 3, Local: memory.NewLimiter(), Hooks: &observe.Limit{Log: observe.Silent}})
	for _, c := range []struct {
		cost    int64
		allowed bool
	}{{3_333_000, true}, {1000, false}} {
		if d, err := l.Take(t.Context(), limit.Charge{Key: "k", Rate: r, Cost: c.cost}); err != nil || d.Allowed != c.allowed {
			t.Errorf("%d units: %+v, %v", c.cost, d, err)
		}
	}
}

func TestShadow(t *testing.T) {
	var refused []observe.LimitRefused
	l := gate(t, &gated{}, &limit.Options{Shadow: true, Hooks: &observe.Limit{Refused: func(e observe.LimitRefused) { refused = append(refused, e) }}})
	wide, narrow := limit.Charge{Key: "wide", Rate: limit.PerHour(10), Cost: 1}, limit.Charge{Key: "narrow", Rate: limit.PerHour(1), Cost: 1}
	for range 2 {
		if d, err := l.Take(t.Context(), wide, narrow); err != nil || !d.Allowed || d.Remaining != 0 || len(d.Each) != 2 {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if len(refused) != 1 || refused[0] != (observe.LimitRefused{Key: "narrow", Shadow: true}) {
		t.Errorf("%+v", refused)
	}
}

// TestShadowOfAShare: shadow mode also admits a charge above the share of the process.
func TestShadowOfAShare(t *testing.T) {
	var refused []observe.LimitRefused
	l := gate(t, &gated{err: errors.New("down")}, &limit.Options{Shadow: true, OnFailure: limit.Share, Share: 0.5, Local: memory.NewLimiter(),
		Hooks: &observe.Limit{Log: observe.Silent, Refused: func(e observe.LimitRefused) { refused = append(refused, e) }}})
	d, err := l.Take(t.Context(), limit.Charge{Key: "k", Rate: limit.PerHour(10), Cost: 6})
	if err != nil || !d.Allowed || d.Granted != 6 || len(refused) != 1 || refused[0] != (observe.LimitRefused{Key: "k", Shadow: true}) {
		t.Errorf("%+v, %v, reported %+v", d, err, refused)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []limit.Options{{Timeout: -1}, {OnFailure: 3}, {OnFailure: limit.Share}, {OnFailure: limit.Share, Share: 2, Local: memory.NewLimiter()},
		{OnFailure: limit.Share, Share: 0.5}} {
		if _, err := limit.New(memory.NewLimiter(), &o); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestOpen(t *testing.T) {
	open := func() *limit.Limits {
		l, err := limit.Open(t.Context(), "memory://limits", nil)
		ok(t, err)
		t.Cleanup(func() { ok(t, l.Close(context.Background())) })
		return l
	}
	one, two := open(), open()
	if d, err := one.Allow(t.Context(), "k", limit.PerHour(1)); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := two.Allow(t.Context(), "k", limit.PerHour(1)); err != nil || d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := limit.Open(t.Context(), "nowhere://x", nil); err == nil {
		t.Error("opened nowhere")
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]limit.Rate{
		"100/s": limit.PerSecond(100), "20/m": limit.PerMinute(20), "3/h": limit.PerHour(3), "5/90s": {Count: 5, Period: 90 * time.Second}, "7/1h30m": {Count: 7, Period: 90 * time.Minute}, "1/ms": {Count: 1, Period: time.Millisecond},
		"10001/720h": {Count: 10001, Period: 720 * time.Hour}, // with a burst, or another algorithm
	} {
		if r, err := limit.ParseRate(text); err != nil || r != want {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	for _, text := range []string{"", "100", "/s", "x/s", "1/", "1/x", "1.5/s", "0/s", "-1/s", "1/-1s", "1/0s", "1/ns", "1/s/s", "1/9999999h"} {
		if r, err := limit.ParseRate(text); err == nil {
			t.Errorf("%q is read as %+v", text, r)
		}
	}
}
