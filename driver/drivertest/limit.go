package drivertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// LimiterHarness gives [RunLimiter] access to one driver.Limiter and its store.
type LimiterHarness = StoreHarness[driver.Limiter]

// LimiterBackend is one running store of limits. If other programs can write to it, it also
// implements [LimitDamager].
type LimiterBackend = StoreBackend[driver.Limiter]

// LimitDamager overwrites the stored state of a key.
type LimitDamager interface {
	// Damage fails the test if it cannot.
	Damage(t *testing.T, key, text string)
}

// RunLimiter runs the conformance suite of driver.Limiter. It checks that the store decides as
// driver.Decide does, whose arithmetic has its own tests.
func RunLimiter(t *testing.T, h LimiterHarness) {
	runStore(t, h, func(s *storeScene[driver.Limiter]) *limiterScene { return &limiterScene{s} }, []suiteTest[*limiterScene]{
		{"Algorithms", 0, testLimiterAlgorithms},
		{"AllOrNothing", 0, testLimiterAllOrNothing},
		{"Batch", 0, testLimiterBatch},
		{"BadInput", 0, testLimiterBadInput},
		{"Keys", 0, testLimiterKeys},
		{"Damaged", 0, testLimiterDamaged},
		{"Inspected", 0, testLimiterInspected},
		{"Competition", 0, testLimiterCompetition},
		{"LostReplies", Servers | LostReplies | onPaths, testLimiterLostReplies},
		{"Faults", Servers | LostReplies | Durable, testLimiterFaults},
	})
}

type limiterScene struct{ *storeScene[driver.Limiter] }

// hourly returns a rate whose units do not return while a test runs.
func hourly(n int64, a driver.Algorithm) driver.Rate {
	return driver.Rate{Count: n, Period: 366 * 24 * time.Hour, Algorithm: a}
}

var algorithms = []driver.Algorithm{driver.GCRA, driver.SlidingLog, driver.FixedWindow, driver.SlidingCounter}

// take makes one call, which must be answered.
func (s *limiterScene) take(charges ...driver.Charge) driver.LimitAnswer {
	s.Helper()
	a := s.store.Take(s.Context(), []driver.LimitCall{charges})
	if len(a) != 1 || a[0].Err != nil || len(a[0].Decisions) != len(charges) {
		s.Fatalf("%+v: %+v", charges, a)
	}
	return a[0]
}

func (s *limiterScene) one(key string, r driver.Rate, cost, least int64) driver.Decision {
	s.Helper()
	return s.take(driver.Charge{Key: key, Rate: r, Cost: cost, Least: least}).Decisions[0]
}

func testLimiterAlgorithms(s *limiterScene) {
	for _, a := range algorithms {
		key, r := fmt.Sprint("a", a), hourly(10, a)
		for i, c := range []struct{ cost, least, granted, remaining int64 }{
			{0, 0, 0, 10}, {1, 0, 1, 9}, {7, 0, 7, 2}, {3, 0, 0, 2}, {5, 1, 2, 0}, {5, 1, 0, 0}, {-4, 0, -4, 4}, {0, 0, 0, 4}, {4, 0, 4, 0}, {-100, 0, -100, 10},
		} {
			d := s.one(key, r, c.cost, c.least)
			refused := c.cost > 0 && c.granted == 0
			if d.Granted != c.granted || d.Remaining != c.remaining || d.Allowed == refused || (d.RetryAfter > 0) != (c.granted < c.cost) || (d.ResetAfter > 0) != (c.remaining < 10) {
				s.Errorf("%v, step %d: cost %d at least %d: %+v, want %d granted and %d remaining", a, i, c.cost, c.least, d, c.granted, c.remaining)
			}
		}
	}
}

func testLimiterAllOrNothing(s *limiterScene) {
	wide, narrow := driver.Charge{Key: "{t}wide", Rate: hourly(10, 0), Cost: 2}, driver.Charge{Key: "{t}narrow", Rate: hourly(1, 0), Cost: 1}
	if a := s.take(wide, narrow); !a.Allowed() || a.Decisions[0].Remaining != 8 || a.Decisions[1].Remaining != 0 {
		s.Errorf("%+v", a)
	}
	for _, order := range [][]driver.Charge{{wide, narrow}, {narrow, wide}} {
		a := s.take(order...)
		for i, d := range a.Decisions {
			if fits := order[i].Key == wide.Key; d.Granted != 0 || d.Allowed != fits || fits && d.Remaining != 8 {
				s.Errorf("%s: %+v", order[i].Key, d)
			}
		}
	}
}

func testLimiterBatch(s *limiterScene) {
	var calls []driver.LimitCall
	for i := range 3 * driver.MaxCharges {
		calls = append(calls, driver.LimitCall{{Key: fmt.Sprint(i % 50), Rate: hourly(3, 0), Cost: 1}})
	}
	calls[70] = driver.LimitCall{{Key: "bad"}} // the third of key 20
	calls[75] = driver.LimitCall{{Key: "{u}a", Rate: hourly(3, 0), Cost: 1}, {Key: "{u}b", Rate: hourly(3, 0), Cost: 1}}
	answers := s.store.Take(s.Context(), calls)
	if len(answers) != len(calls) {
		s.Fatalf("%d answers to %d calls", len(answers), len(calls))
	}
	for i, a := range answers {
		switch want := i < 150; {
		case i == 70:
			s.mustFail(a.Err, interlock.Bug, nil)
		case i == 170 || i == 175:
			if !a.Allowed() {
				s.Errorf("call %d: %+v", i, a)
			}
		case a.Err != nil || a.Allowed() != want:
			s.Errorf("call %d: %+v", i, a)
		case i != 75 && want && a.Decisions[0].Remaining != 2-int64(i/50) && i != 120 && i != 125:
			s.Errorf("call %d: %+v is out of order", i, a)
		}
	}
	if a := s.store.Take(s.Context(), nil); len(a) != 0 {
		s.Errorf("%v to nothing", a)
	}
}

func testLimiterBadInput(s *limiterScene) {
	for _, call := range []driver.LimitCall{nil, {{Key: "", Rate: hourly(1, 0), Cost: 1}}, {{Key: strings.Repeat("x", 256), Rate: hourly(1, 0), Cost: 1}},
		{{Key: "a\x00", Rate: hourly(1, 0), Cost: 1}}, {{Key: "\xff", Rate: hourly(1, 0), Cost: 1}},
		{{Key: "k", Cost: 1}}, {{Key: "k", Rate: hourly(-1, 0), Cost: 1}}, {{Key: "k", Rate: hourly(1, 9), Cost: 1}}, {{Key: "k", Rate: hourly(1, 0), Cost: 2}}} {
		s.mustFail(s.store.Take(s.Context(), []driver.LimitCall{call})[0].Err, interlock.Bug, nil)
	}
	ctx, gone := endedContext(s.T)
	s.mustFail(s.store.Take(ctx, []driver.LimitCall{{{Key: "k", Rate: hourly(1, 0), Cost: 1}}})[0].Err, interlock.Definite, gone)
	if d := s.one("k", hourly(1, 0), 1, 0); !d.Allowed {
		s.Errorf("calls that failed have consumed: %+v", d)
	}
}

// testLimiterKeys checks that keys are data and that limits of different algorithms are independent.
func testLimiterKeys(s *limiterScene) {
	for _, key := range []string{`it's "1"\, {NULL} ?`, "é%_*", "NULL", "K", "k", "k ", strings.Repeat("x", 255)} {
		if d := s.one(key, hourly(1, 0), 1, 0); !d.Allowed {
			s.Errorf("%q: %+v", key, d)
		}
		if d := s.one(key, hourly(1, 0), 1, 0); d.Allowed {
			s.Errorf("%q again: %+v", key, d)
		}
	}
}

// testLimiterDamaged checks that a state that no store has written is an error only of the calls
// that charge its key.
func testLimiterDamaged(s *limiterScene) {
	damager, ok := s.backend.(LimitDamager)
	if !ok {
		s.Skip("no other program can write to this store")
	}
	charge := func(key string) driver.Charge { return driver.Charge{Key: "{d}" + key, Rate: hourly(4, 0), Cost: 1} }
	s.take(charge("bad"), charge("good"))
	for _, text := range []string{"x", "-1", "0 1 2", "0 1 2 0", "0 1 2 -3", "0 1 2 3 4", "1 2 3 4", "2 2 3 4 5 6", "3 1", "4 1 2 3", "0  1 2", "0 1 2 99999999999999999999", "0 1 2 3 "} {
		damager.Damage(s.T, charge("bad").Key, text)
		a := s.store.Take(s.Context(), []driver.LimitCall{{charge("good")}, {charge("bad")}, {charge("good"), charge("bad")}, {charge("good")}})
		for i, x := range a {
			if bad := i == 1 || i == 2; !bad && (!x.Allowed() || x.Decisions[0].Remaining != 2-int64(i/3)) ||
				bad && (interlock.Kind(x.Err) != interlock.Definite || !strings.Contains(x.Err.Error(), text)) {
				s.Errorf("%q, call %d: %+v", text, i, x)
			}
		}
		s.one(charge("good").Key, hourly(4, 0), -2, 0)
	}
	if operator, ok := s.store.(driver.LimitInspector); ok {
		damager.Damage(s.T, charge("bad").Key, "x")
		if shown, err := operator.Limit(s.Context(), charge("bad").Key); err != nil || shown.Damaged != "x" {
			s.Errorf("%+v, %v", shown, err)
		}
		if _, err := operator.Reset(s.Context(), charge("bad").Key); err != nil {
			s.Error(err)
		}
		s.take(charge("bad"))
	}
	damager.Damage(s.T, charge("bad").Key, "")
	s.take(charge("bad"))
}

// testLimiterInspected checks that keys with unexpired charges are listed in order, and reset.
func testLimiterInspected(s *limiterScene) {
	operator, ok := s.store.(driver.LimitInspector)
	if !ok {
		s.Skip("this store cannot be inspected")
	}
	quick := driver.Rate{Count: 1, Period: time.Millisecond}
	for _, a := range algorithms {
		s.one("a/"+a.String(), hourly(10, a), 3, 0)
	}
	s.one("a/over", quick, 1, 0)
	s.one("a*", hourly(10, 0), 1, 0)
	s.one("b}:limit:a/", hourly(10, 0), 1, 0)
	time.Sleep(5 * time.Millisecond) // until a/over has expired
	list := func(prefix string, limit int) (keys []string, more bool) {
		s.Helper()
		all, more, err := operator.Limits(s.Context(), prefix, limit)
		testbed.OK(s, err)
		for _, l := range all {
			keys = append(keys, l.Key)
			if strings.HasPrefix(l.Key, "a/") && (l.State.Used() != 3 || time.Since(l.State.Time()).Abs() > 10*time.Minute || l.ResetAfter < time.Hour || l.Damaged != "") {
				s.Errorf("%+v", l)
			}
		}
		return keys, more
	}
	for _, c := range []struct {
		prefix string
		limit  int
		keys   string
		more   bool
	}{
		{"a/", 10, "[a/fixed-window a/gcra a/sliding-counter a/sliding-log]", false}, {"a/", 4, "[a/fixed-window a/gcra a/sliding-counter a/sliding-log]", false},
		{"a/", 2, "[a/fixed-window a/gcra]", true}, {"", 10, "[a* a/fixed-window a/gcra a/sliding-counter a/sliding-log b}:limit:a/]", false},
		{"a*", 10, "[a*]", false}, {"c", 10, "[]", false},
	} {
		if keys, more := list(c.prefix, c.limit); fmt.Sprint(keys) != c.keys || more != c.more {
			s.Errorf("%d below %q: %v, %v", c.limit, c.prefix, keys, more)
		}
	}
	for _, c := range []struct {
		key         string
		used        int64
		found, over bool
	}{{"a/gcra", 3, true, false}, {"a/over", 0, false, true}, {"none", 0, false, false}} {
		shown, err := operator.Limit(s.Context(), c.key)
		if err != nil || shown.Key != c.key || shown.State.Used() != c.used || (shown.ResetAfter > 0) != c.found {
			s.Errorf("%+v, %v", shown, err)
		}
		if found, err := operator.Reset(s.Context(), c.key); err != nil || !c.over && found != c.found {
			s.Errorf("reset %s: %v, %v", c.key, found, err)
		}
	}
	if d := s.one("a/gcra", hourly(10, 0), 10, 0); !d.Allowed {
		s.Errorf("after a reset: %+v", d)
	}
}

// testLimiterCompetition checks the grants of several processes against the bound of the rate.
// The units granted between the call of the first and the answer of the last all belong to that
// interval.
func testLimiterCompetition(s *limiterScene) {
	for _, a := range []driver.Algorithm{driver.GCRA, driver.SlidingLog} {
		r := driver.Rate{Count: 20, Period: 100 * time.Millisecond, Algorithm: a}
		key, begun := fmt.Sprint("hot", a), time.Now()
		var mu sync.Mutex
		var history []granted
		s.atOnce(4, func(_ int, store driver.Limiter) error {
			for range 60 {
				sent := time.Since(begun)
				x := store.Take(s.Context(), []driver.LimitCall{{{Key: key, Rate: r, Cost: 1}}})[0]
				if x.Err != nil {
					return x.Err
				}
				if x.Allowed() {
					mu.Lock()
					history = append(history, granted{sent, time.Since(begun)})
					mu.Unlock()
				} else {
					time.Sleep(x.Decisions[0].RetryAfter / 4)
				}
			}
			return nil
		})
		if len(history) < 20 {
			s.Errorf("%v: only %d calls were admitted", a, len(history))
		}
		checkRate(s.T, r, history)
	}
}

// granted is one unit, granted between two times.
type granted struct{ sent, answered time.Duration }

// checkRate fails the test if more was granted in an interval than the rate allows.
func checkRate(t *testing.T, r driver.Rate, history []granted) {
	t.Helper()
	for _, first := range history {
		for _, last := range history {
			count, length := int64(0), last.answered-first.sent
			if length < 0 {
				continue
			}
			for _, g := range history {
				if g.sent >= first.sent && g.answered <= last.answered {
					count++
				}
			}
			most := r.Capacity() + int64(length)*r.Count/int64(r.Period)
			switch r.Algorithm {
			case driver.SlidingLog:
				most = r.Count * (int64(length/r.Period) + 1)
			case driver.FixedWindow, driver.SlidingCounter:
				most = r.Count * (int64(length/r.Period) + 2)
			}
			if count > most {
				t.Fatalf("%+v: %d were granted in %v, at most %d may be", r, count, length, most)
			}
		}
	}
}

// testLimiterLostReplies checks that each call without an answer consumes at most once.
func testLimiterLostReplies(s *limiterScene) {
	r := hourly(10, 0)
	s.one("k", r, 1, 0)
	s.loseReply(func(ctx context.Context) error {
		return s.store.Take(ctx, []driver.LimitCall{{{Key: "k", Rate: r, Cost: 3}}})[0].Err
	})
	s.store = s.beside()
	if d := s.one("k", r, 0, 0); d.Remaining != 6 && d.Remaining != 9 {
		s.Errorf("%+v", d)
	}
}

// limitPatience bounds one call during faults.
const limitPatience = 200 * time.Millisecond

// slowUnits is the size of a limit whose units do not return. It is more than one call takes and
// not a multiple of that.
const slowUnits = 200

// limitHistory is what processes were granted of one limit during faults.
type limitHistory struct {
	key  string
	rate driver.Rate
	cost int64 // of each call

	mu      sync.Mutex
	granted []granted
	refused int
	unknown int64 // units of calls with an unknown outcome
}

// testLimiterFaults takes units from several processes while the server is paused, loses replies,
// is cut off and is killed. No limit admits more than its bound. A limit whose units do not return
// has lost the granted and perhaps the unknown units, in whole calls: refused calls consume nothing,
// and no call consumes twice.
func testLimiterFaults(s *limiterScene) {
	var histories []*limitHistory
	for _, a := range algorithms {
		histories = append(histories, &limitHistory{key: "quick/" + a.String(), rate: driver.Rate{Count: 20, Period: 500 * time.Millisecond, Algorithm: a}, cost: 2},
			&limitHistory{key: "slow/" + a.String(), rate: driver.Rate{Count: slowUnits, Period: 10 * 24 * time.Hour, Algorithm: a}, cost: 7})
	}
	var answered, failed atomic.Int64
	ctx, stop := context.WithCancel(s.Context())
	begun, workers := time.Now(), sync.WaitGroup{}
	for w := range 4 {
		store := s.open()
		workers.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				if histories[i%len(histories)].take(s.T, store, begun) {
					answered.Add(1)
				} else {
					failed.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	rises := func(what string, n *atomic.Int64, by int64) {
		s.Helper()
		from := n.Load()
		testbed.Eventually(s, what, restarted, func() bool { return n.Load() >= from+by })
	}
	defer workers.Wait()
	defer stop()
	for _, f := range []struct{ begin, end func() }{
		{s.faults.Pause, s.faults.Resume}, {s.faults.(ReplyDropper).DropReplies, s.faults.Heal}, {s.faults.Cut, s.faults.Heal}, {s.faults.Kill, s.faults.Restart},
	} {
		rises("decisions", &answered, 200)
		f.begin()
		rises("failures", &failed, 4)
		f.end()
	}
	rises("decisions", &answered, 200)
	stop()
	workers.Wait()
	s.store = s.beside()
	for _, h := range histories {
		// A busy machine may have made too few calls to exceed the rate.
		for end := time.Now().Add(restarted); h.refused == 0 && time.Now().Before(end); {
			h.take(s.T, s.store, begun)
		}
		h.check(s)
	}
}

// take makes one call and reports whether it was decided.
func (h *limitHistory) take(t *testing.T, store driver.Limiter, begun time.Time) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limitPatience)
	defer cancel()
	sent := time.Since(begun)
	x := store.Take(ctx, []driver.LimitCall{{{Key: h.key, Rate: h.rate, Cost: h.cost}}})[0]
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case x.Allowed():
		for range h.cost {
			h.granted = append(h.granted, granted{sent, time.Since(begun)})
		}
	case x.Err == nil:
		h.refused++
	case interlock.Kind(x.Err) == interlock.Uncertain:
		h.unknown += h.cost
	case interlock.Kind(x.Err) == interlock.Bug:
		t.Error(x.Err)
	}
	return x.Err == nil
}

func (h *limitHistory) check(s *limiterScene) {
	slow := h.rate.Period > time.Hour
	if len(h.granted) < 20 || h.refused == 0 {
		s.Errorf("%s: only %d units were granted, and %d calls refused", h.key, len(h.granted), h.refused)
	}
	checkRate(s.T, h.rate, h.granted)
	if !slow {
		return
	}
	left := int64(-1)
	s.persist("peek", func(ctx context.Context) error {
		x := s.store.Take(ctx, []driver.LimitCall{{{Key: h.key, Rate: h.rate}}})[0]
		if x.Err == nil {
			left = x.Decisions[0].Remaining
		}
		return x.Err
	})
	if most := slowUnits - int64(len(h.granted)); left > most || left < most-h.unknown || (slowUnits-left)%h.cost != 0 {
		s.Errorf("%s: %d units remain of 200, %d were granted and %d may have been", h.key, left, len(h.granted), h.unknown)
	}
}
