package driver

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// rates are small, so that short histories reach every state.
var rates = []Rate{
	{Count: 1, Period: 7 * time.Microsecond}, {Count: 3, Period: 7 * time.Microsecond}, {Count: 3, Period: 7 * time.Microsecond, Burst: 5},
	{Count: 4, Period: 10 * time.Microsecond, Burst: 1}, {Count: 7, Period: 3 * time.Microsecond},
	{Count: 3, Period: 7 * time.Microsecond, Algorithm: FixedWindow}, {Count: 3, Period: 7 * time.Microsecond, Algorithm: SlidingCounter},
	{Count: 3, Period: 7 * time.Microsecond, Algorithm: SlidingLog}, {Count: 1, Period: 4 * time.Microsecond, Algorithm: SlidingLog},
	{Count: 1, Period: 4 * time.Microsecond, Algorithm: SlidingCounter},
}

// admitted is one admission.
type admitted struct{ at, n int64 }

// bound is how much may be admitted in an interval that lasts for t and includes both its ends.
func bound(r Rate, t int64) int64 {
	period := r.Period.Microseconds()
	switch r.Algorithm {
	case GCRA:
		return r.Capacity() + t*r.Count/period
	case SlidingLog:
		return r.Count * (t/period + 1)
	}
	return r.Count * (t/period + 2)
}

// check holds a history against the bound of its rate.
func check(t *testing.T, r Rate, history []admitted) {
	t.Helper()
	for i := range history {
		sum := int64(0)
		for _, a := range history[i:] {
			sum += a.n
			if most := bound(r, a.at-history[i].at); sum > most {
				t.Fatalf("%+v: admitted %d from %d to %d, at most %d are: %v", r, sum, history[i].at, a.at, most, history)
			}
		}
	}
}

// TestDecide explores all histories of some length, and holds each step against the contract.
func TestDecide(t *testing.T) {
	for _, r := range rates {
		var explore func(now int64, s LimitState, history []admitted, left int)
		explore = func(now int64, s LimitState, history []admitted, left int) {
			if left == 0 {
				check(t, r, history)
				return
			}
			for _, pause := range []int64{0, 1, 3, 6, 7, 13} {
				for _, cost := range []int64{1, r.Capacity()} {
					at, states := now+pause, []LimitState{slices.Clone(s)}
					d := step(t, r, at, cost, states)
					then := history
					if d.Allowed {
						then = append(slices.Clone(history), admitted{at, cost})
					}
					explore(at, states[0], then, left-1)
				}
			}
		}
		for start := range int64(7) {
			explore(1000+start, nil, nil, 3)
		}
	}
}

// step decides one charge, and checks what a decision promises.
func step(t *testing.T, r Rate, at, cost int64, states []LimitState) Decision {
	t.Helper()
	was := slices.Clone(states[0])
	ask := func(at, cost int64, s LimitState) (Decision, LimitState) {
		states := []LimitState{slices.Clone(s)}
		a := Decide(at, LimitCall{{Key: "k", Rate: r, Cost: cost}}, states)
		return a.Decisions[0], states[0]
	}
	d, now := ask(at, cost, was)
	switch shown, _ := ask(at, 0, was); {
	case d.Allowed != (shown.Remaining >= cost):
		t.Fatalf("%+v %v at %d: %+v, but shows %+v", r, was, at, d, shown)
	case d.Allowed && (d.Granted != cost || d.Remaining != shown.Remaining-cost || d.RetryAfter != 0):
		t.Fatalf("%+v %v at %d: %+v after %+v", r, was, at, d, shown)
	case !d.Allowed && (d.Granted != 0 || d.Remaining != shown.Remaining || !slices.Equal(was, now)):
		t.Fatalf("%+v %v at %d: refused, but %+v, %v", r, was, at, d, now)
	}
	if wait := d.RetryAfter.Microseconds(); !d.Allowed {
		early, _ := ask(at+wait-1, cost, now)
		late, _ := ask(at+wait, cost, now)
		if wait <= 0 || early.Allowed || !late.Allowed {
			t.Fatalf("%+v %v at %d: retry after %d, but %v before and %v then", r, was, at, wait, early.Allowed, late.Allowed)
		}
	}
	end, _ := ask(at+d.ResetAfter.Microseconds(), 0, now)
	if end.Remaining != r.Capacity() || end.ResetAfter != 0 {
		t.Fatalf("%+v %v at %d: reset after %v, but then %+v", r, now, at, d.ResetAfter, end)
	}
	if reset := d.ResetAfter.Microseconds(); reset > 0 {
		if before, _ := ask(at+reset-1, 0, now); before.ResetAfter == 0 {
			t.Fatalf("%+v %v at %d: reset before %d", r, now, at, reset)
		}
	}
	states[0] = now
	return d
}

// TestDecideLong has long histories of rates as people use them.
func TestDecideLong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := Rate{Count: 1 + random.Int64N(50), Period: time.Duration(1+random.Int64N(1000)) * time.Microsecond, Algorithm: Algorithm(random.IntN(4))}
		if r.Algorithm == GCRA {
			r.Burst = random.Int64N(80)
		}
		var history []admitted
		now, states := int64(1e15), []LimitState{nil}
		for range 100 {
			now += random.Int64N(2*r.Period.Microseconds()/max(1, random.Int64N(20)) + 1)
			if cost := 1 + random.Int64N(r.Capacity()); step(t, r, now, cost, states).Allowed {
				history = append(history, admitted{now, cost})
			}
		}
		check(t, r, history)
	}
}

func TestDecideParts(t *testing.T) {
	for _, a := range []Algorithm{GCRA, FixedWindow, SlidingCounter, SlidingLog} {
		r := Rate{Count: 10, Period: time.Second, Algorithm: a}
		states := []LimitState{nil}
		decide := func(now, cost, least int64) Decision {
			return Decide(now, LimitCall{{Key: "k", Rate: r, Cost: cost, Least: least}}, states).Decisions[0]
		}
		if d := decide(5e6, 7, 0); d.Granted != 7 || d.Remaining != 3 {
			t.Errorf("%v: %+v", a, d)
		}
		if d := decide(5e6, 7, 1); !d.Allowed || d.Granted != 3 || d.Remaining != 0 {
			t.Errorf("%v: in part: %+v", a, d)
		}
		if d := decide(5e6, 7, 1); d.Allowed || d.Granted != 0 || d.RetryAfter <= 0 {
			t.Errorf("%v: nothing is left: %+v", a, d)
		}
		if d := decide(5e6, -4, 0); !d.Allowed || d.Remaining != 4 {
			t.Errorf("%v: given back: %+v", a, d)
		}
		if d := decide(5e6, -100, 0); d.Remaining != 10 {
			t.Errorf("%v: more given back than was consumed: %+v", a, d)
		}
		// A call of several charges takes all or nothing.
		states = []LimitState{nil, nil}
		one := Rate{Count: 1, Period: time.Second, Algorithm: a}
		both := LimitCall{{Key: "a", Rate: r, Cost: 1}, {Key: "b", Rate: one, Cost: 1}}
		if x := Decide(5e6, both, states); !x.Allowed() {
			t.Errorf("%v: %+v", a, x)
		}
		if x := Decide(5e6, both, states); x.Allowed() || !x.Decisions[0].Allowed || x.Decisions[1].Allowed || x.Decisions[0].Remaining != 9 || x.Decisions[0].Granted != 0 {
			t.Errorf("%v: %+v", a, x)
		}
	}
}

// TestDecideClock: a clock that is set back neither gives units back nor keeps them for long.
func TestDecideClock(t *testing.T) {
	const hour = 3600e6
	for _, a := range []Algorithm{GCRA, FixedWindow, SlidingCounter, SlidingLog} {
		r := Rate{Count: 10, Period: time.Second, Algorithm: a}
		for _, back := range []int64{1, skew, skew + 1, hour} {
			now, states := int64(1e15+5e5), []LimitState{nil}
			step := func(at int64) Decision {
				return Decide(at, LimitCall{{Key: "k", Rate: r, Cost: 10}}, states).Decisions[0]
			}
			if !step(now).Allowed || step(now-back).Allowed {
				t.Errorf("%v: admitted after the clock was set back by %d", a, back)
			}
			if !step(now - back + 2e6 + skew).Allowed {
				t.Errorf("%v: refused a period after the clock was set back by %d", a, back)
			}
		}
	}
}

// TestDecideChangedRate: a limit keeps what is consumed when its rate changes.
func TestDecideChangedRate(t *testing.T) {
	states := []LimitState{nil}
	ask := func(count, cost int64) Decision {
		return Decide(1e15, LimitCall{{Key: "k", Rate: Rate{Count: count, Period: time.Second}, Cost: cost}}, states).Decisions[0]
	}
	ask(10, 6)
	if d := ask(30, 0); d.Remaining != 24 {
		t.Errorf("%+v", d)
	}
	if d := ask(7, 1); d.Remaining != 0 {
		t.Errorf("%+v", d)
	}
	if d := ask(3, 1); d.Allowed || d.RetryAfter > 334*time.Millisecond {
		t.Errorf("%+v", d)
	}
}

func TestRateCheck(t *testing.T) {
	for _, r := range []Rate{{}, {Count: -1, Period: 1}, {Count: 1}, {Count: 1, Period: -time.Second}, {Count: 1, Period: 1}, {Count: 1, Period: 1500},
		{Count: 1, Period: 367 * 24 * time.Hour}, {Count: 1, Period: time.Second, Burst: -1}, {Count: math.MaxInt64, Period: time.Second},
		{Count: 999_983, Period: 24 * time.Hour}, {Count: 1, Period: time.Second, Burst: math.MaxInt64}, {Count: 1, Period: time.Second, Algorithm: 4},
		{Count: 1, Period: time.Second, Algorithm: -1}, {Count: 1, Period: time.Second, Algorithm: FixedWindow, Burst: 2},
		{Count: MaxLog + 1, Period: time.Second, Algorithm: SlidingLog}} {
		if r.Check() == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	for _, r := range []Rate{{Count: 1e6, Period: 24 * time.Hour}, {Count: 1, Period: maxPeriod}, {Count: 10_000_000, Period: time.Second}, {Count: 1e9, Period: time.Second}} {
		if err := r.Check(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	good := Rate{Count: 5, Period: time.Second}
	for _, l := range []LimitCall{{}, {{Key: "", Rate: good}}, {{Key: "k", Rate: good, Cost: 6}}, {{Key: "k", Rate: good, Cost: 2, Least: 3}},
		{{Key: "k", Rate: good, Least: -1}}, {{Key: "k", Rate: good, Cost: 1}, {Key: "k", Rate: good, Cost: 1}},
		{{Key: "a", Rate: good, Cost: 2, Least: 1}, {Key: "b", Rate: good, Cost: 1}}, make(LimitCall, MaxCharges+1)} {
		if l.Check() == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	if err := (LimitCall{{Key: "k", Rate: good, Cost: 9, Least: 5}}).Check(); err != nil {
		t.Error(err)
	}
}

// FuzzParseLimitState: a state that is accepted, whatever wrote it, can be decided by.
func FuzzParseLimitState(f *testing.F) {
	for _, text := range []string{"", "0 1000 5 7", "0 1 9007199254740992 1", "1 5 6 7 8", "2 5 6 7 0", "3", "3 5 1 6 2", "3 9 9007199254740992", "0 1 2 0", "x"} {
		f.Add(text, int64(1000))
	}
	f.Fuzz(func(t *testing.T, text string, now int64) {
		s, ok := ParseLimitState(text)
		if !ok {
			return
		}
		if again, ok := ParseLimitState(s.Text()); !ok || again.Text() != s.Text() {
			t.Fatalf("%q is read as %v and %v", text, s, again)
		}
		now &= 1<<51 - 1
		for a := GCRA; a <= SlidingLog; a++ {
			r := Rate{Count: 3, Period: 7 * time.Microsecond, Algorithm: a}
			d := Decide(now, LimitCall{{Key: "k", Rate: r, Cost: 1}}, []LimitState{s}).Decisions[0]
			if d.Remaining < 0 || d.Remaining > 3 || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Allowed != (d.Granted == 1) {
				t.Errorf("%q at %d: %+v", text, now, d)
			}
		}
	})
}
