package driver

// Decide decides one call at now, the store's clock in microseconds since 1970. states has the
// state of each charge. Decide replaces the elements that change and never writes to their
// memory.
func Decide(now int64, call LimitCall, states []LimitState) LimitAnswer {
	a, tallies := LimitAnswer{Decisions: make([]Decision, len(call))}, make([]*tally, len(call))
	for i, c := range call {
		tallies[i] = c.Rate.load(states[i], now)
		a.Decisions[i] = tallies[i].admit(c)
	}
	allowed := a.Allowed()
	for i, t := range tallies {
		d := &a.Decisions[i]
		if !allowed {
			d.Granted = 0
		}
		if t.consume(d.Granted); d.Granted != 0 || t.rebased {
			states[i] = t.state
		}
		d.Remaining, d.ResetAfter = t.remaining(), micros(t.reset())
		if c := call[i]; allowed && d.Granted < c.Cost {
			d.RetryAfter = micros(t.wait(c.least()))
		}
	}
	return a
}

// Bucket returns the decision of [Decide] on one charge of [GCRA] that returns no units, at the given
// level of its bucket.
func (c Charge) Bucket(level int64) Decision {
	gcd := c.Rate.gcd()
	unit, speed := c.Rate.Period.Microseconds()/gcd, c.Rate.Count/gcd
	full := c.Rate.Capacity() * unit
	d := Decision{Allowed: true, Granted: min(c.Cost, (full-level)/unit)}
	if d.Granted < c.least() {
		d.Allowed, d.Granted = false, 0
	}
	level += d.Granted * unit
	d.Remaining, d.ResetAfter = (full-level)/unit, micros(ceil(level, speed))
	if d.Granted < c.Cost {
		d.RetryAfter = micros(ceil(level-full+c.least()*unit, speed))
	}
	return d
}

// skew is by how many microseconds clock readings of one store may go back and still be in
// order. This occurs if a clock is read before a lock is acquired.
const skew = 1_000_000

// tally is one limit at one time, with its state at that time. A state has these numbers after
// the algorithm:
//
//   - GCRA: the time, the level, and the level of one unit
//   - FixedWindow, SlidingCounter: the time, the window, and the units consumed in it and in
//     the previous one
//   - SlidingLog: time and units of each admission
type tally struct {
	Rate
	now     int64
	state   LimitState
	rebased bool // the clock was set back, and the state counts from its new time
}

// since returns the time since at and never lets time go back. If the clock is at most skew
// behind, the time of the tally stays at its last value. If the clock was set back further,
// consumed units stay and time continues from the new clock.
func (t *tally) since(at int64) int64 {
	switch {
	case at-t.now > skew:
		t.rebased = true
	case at > t.now:
		t.now = at
	default:
		return t.now - at
	}
	return 0
}

// load returns the state at the time now. It does not write to the memory of s.
func (r Rate) load(s LimitState, now int64) *tally {
	t := &tally{Rate: r, now: now}
	if len(s) == 0 || s[0] != int64(r.Algorithm) {
		s = nil // state of another algorithm
	}
	switch r.Algorithm {
	case GCRA:
		t.drain(s)
	case SlidingLog:
		t.forget(s)
	default:
		t.roll(s)
	}
	return t
}

// unit returns the value of one unit in the measure of used, chosen so that all numbers are
// whole. The bucket of GCRA drains speed of it in a microsecond.
func (r Rate) unit() int64 {
	switch r.Algorithm {
	case GCRA:
		return r.Period.Microseconds() / r.gcd()
	case SlidingCounter:
		return r.Period.Microseconds()
	}
	return 1
}

func (r Rate) speed() int64 { return r.Count / r.gcd() }

func (r Rate) gcd() int64 {
	a, b := r.Count, r.Period.Microseconds()
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (t *tally) drain(s LimitState) {
	level := int64(0)
	if len(s) == 4 {
		since := t.since(s[1])
		level = s[2]
		if s[3] != t.unit() { // the rate was changed: consumption is converted to whole units
			level = min(ceil(level, s[3]), t.Capacity()) * t.unit()
		}
		level = min(level, t.Capacity()*t.unit())
		level -= min(level, min(since, ceil(level, t.speed()))*t.speed())
	}
	t.state = LimitState{int64(GCRA), t.now, level, t.unit()}
}

func (t *tally) roll(s LimitState) {
	period := t.Period.Microseconds()
	var window, count, before int64
	if len(s) == 5 {
		t.since(s[1])
		window, count, before = s[2], min(s[3], t.Count), min(s[4], t.Count) // Count may have been more
	}
	switch present := t.now / period; {
	case t.rebased:
		window = present
	case present == window+1:
		window, count, before = present, 0, count
	case present != window:
		window, count, before = present, 0, 0
	}
	if t.Algorithm == FixedWindow {
		before = 0
	}
	t.state = LimitState{int64(t.Algorithm), t.now, window, count, before}
}

func (t *tally) forget(s LimitState) {
	t.state = LimitState{int64(SlidingLog)}
	if len(s) >= 3 {
		t.since(s[len(s)-2])
	}
	for i := 1; i+1 < len(s); i += 2 {
		if at := min(s[i], t.now); at > t.now-t.Period.Microseconds() {
			t.state = append(t.state, at, s[i+1])
		}
	}
}

// used returns the consumed part of the capacity, in a measure in which one unit is unit().
func (t *tally) used() (level int64) {
	switch s := t.state; t.Algorithm {
	case GCRA:
		return s[2]
	case FixedWindow, SlidingCounter:
		return s[3]*t.unit() + s[4]*(t.unit()-t.now%t.unit())
	default:
		for i := 2; i < len(s); i += 2 {
			level += s[i]
		}
		return level
	}
}

func (t *tally) remaining() int64 {
	return max(0, t.Capacity()*t.unit()-t.used()) / t.unit()
}

// admit decides without consuming.
func (t *tally) admit(c Charge) Decision {
	d := Decision{Remaining: t.remaining(), ResetAfter: micros(t.reset())}
	if d.Granted = min(c.Cost, d.Remaining); d.Granted < c.least() {
		d.Granted, d.RetryAfter = 0, micros(t.wait(c.least()))
		return d
	}
	d.Allowed = true
	return d
}

// consume takes n units; a negative n returns units.
func (t *tally) consume(n int64) {
	switch s := t.state; t.Algorithm {
	case GCRA:
		s[2] = max(0, s[2]+max(n, -t.Capacity())*t.unit())
	case FixedWindow, SlidingCounter:
		s[3] = max(0, s[3]+n)
	default:
		t.log(n)
	}
}

func (t *tally) log(n int64) {
	last := len(t.state) - 2
	switch {
	case n > 0 && last > 0 && t.state[last] == t.now:
		t.state[last+1] += n
	case n > 0:
		t.state = append(t.state, t.now, n)
	}
	for ; n < 0 && last > 0; last -= 2 { // the latest units are returned first
		if t.state[last+1] > -n {
			t.state[last+1] += n
			return
		}
		n += t.state[last+1]
		t.state = t.state[:last]
	}
}

// wait returns the microseconds until n units can be consumed.
func (t *tally) wait(n int64) int64 {
	s, period := t.state, t.Period.Microseconds()
	switch t.Algorithm {
	case GCRA:
		return ceil(s[2]-(t.Capacity()-n)*t.unit(), t.speed())
	case FixedWindow:
		return period - t.now%period
	case SlidingCounter:
		if free := t.Count - s[3] - n; free >= 0 { // the rest of the previous window still counts
			return period - free*period/s[4] - t.now%period
		}
		return period - t.now%period + max(0, period-(t.Count-n)*period/s[3])
	}
	need := n - t.remaining()
	for i := 1; i < len(s); i += 2 {
		if need -= s[i+1]; need <= 0 {
			return s[i] + period - t.now
		}
	}
	return period
}

// reset returns the microseconds until the limit is unused again.
func (t *tally) reset() int64 {
	s, period := t.state, t.Period.Microseconds()
	switch {
	case t.Algorithm == GCRA:
		return ceil(s[2], t.speed())
	case t.Algorithm == SlidingLog && len(s) > 1:
		return s[len(s)-2] + period - t.now
	case t.Algorithm == SlidingCounter && s[3] > 0:
		return 2*period - t.now%period
	case t.Algorithm != SlidingLog && s[3]+s[4] > 0:
		return period - t.now%period
	}
	return 0
}

// ceil returns a/b, rounded up, and 0 for a ≤ 0.
func ceil(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}
