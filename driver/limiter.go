package driver

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
)

// An Algorithm says how a [Rate] counts.
type Algorithm int

const (
	// GCRA is the token bucket: it drains evenly, and takes Burst at once. In any interval t it
	// admits at most Burst + Count·t/Period. The generic cell rate algorithm and the token bucket
	// are the same mathematics: one keeps the time at which the bucket is full, one its level.
	GCRA Algorithm = iota
	// FixedWindow counts in windows that begin at multiples of Period. An interval as long as
	// Period that has a boundary in it admits at most 2·Count.
	FixedWindow
	// SlidingCounter is approximate: it takes the window before as evenly spread. An interval as
	// long as Period admits at most 2·Count, and Count if calls are evenly spread.
	SlidingCounter
	// SlidingLog remembers each admission: no interval as long as Period admits more than Count,
	// which is at most [MaxLog].
	SlidingLog
)

// String returns gcra, fixed-window, sliding-counter or sliding-log.
func (a Algorithm) String() string {
	if a < GCRA || a > SlidingLog {
		return fmt.Sprintf("algorithm %d", int(a))
	}
	return [...]string{"gcra", "fixed-window", "sliding-counter", "sliding-log"}[a]
}

// Bounds of rates and calls.
const (
	MaxLog     = 1000 // Count of a SlidingLog
	MaxCharges = 64   // of one call
	maxPeriod  = 366 * 24 * time.Hour
	maxLevel   = 1 << 52 // Redis computes in numbers that are exact up to 2^53
)

// A Rate is Count units in each Period.
type Rate struct {
	Count  int64
	Period time.Duration // whole microseconds, up to 366 days
	// Burst is how many units GCRA admits at once; 0 means Count. Others have none.
	Burst     int64
	Algorithm Algorithm
}

// Capacity is how many units are admitted at once.
func (r Rate) Capacity() int64 {
	if r.Burst > 0 {
		return r.Burst
	}
	return r.Count
}

// Check refuses a rate that no limiter can keep.
func (r Rate) Check() error {
	switch {
	case r.Algorithm < GCRA || r.Algorithm > SlidingLog:
		return fmt.Errorf("there is no algorithm %d", r.Algorithm)
	case r.Count < 1 || r.Burst < 0:
		return fmt.Errorf("a rate of %d with a burst of %d: numbers are above zero", r.Count, r.Burst)
	case r.Period < time.Microsecond || r.Period > maxPeriod || r.Period%time.Microsecond != 0:
		return fmt.Errorf("a period of %v: it is 1µs to %v, in whole microseconds", r.Period, maxPeriod)
	case r.Algorithm != GCRA && r.Burst > 0:
		return fmt.Errorf("a burst of %d: only GCRA has one", r.Burst)
	case r.Algorithm == SlidingLog && r.Count > MaxLog:
		return fmt.Errorf("a sliding log of %d: it has at most %d; use GCRA", r.Count, MaxLog)
	case r.Count > maxLevel || r.Capacity() > maxLevel/r.unit():
		return fmt.Errorf("a rate of %d in %v with a burst of %d is too large to count exactly; use a smaller burst or a shorter period", r.Count, r.Period, r.Capacity())
	}
	return nil
}

// A Charge is what a call costs of one limit.
type Charge struct {
	Key  string // 1 to 255 bytes of UTF-8 without NUL
	Rate Rate
	// Cost is how many units are wanted. With 0 the limit is shown and nothing is consumed; a
	// cost below zero is given back, as far as it was consumed.
	Cost int64
	// Least is how many units will do, of a call with one charge; 0 means Cost.
	Least int64
}

// Check refuses what no limiter may be asked.
func (c Charge) Check() error {
	if err := CheckName("limit", "a key", c.Key, 255); err != nil {
		return err
	}
	err := c.Rate.Check()
	switch {
	case err != nil:
	case c.Least < 0 || c.Least > max(c.Cost, 0) || c.Cost > maxLevel || c.Cost < -maxLevel:
		err = fmt.Errorf("a cost of %d, at least %d", c.Cost, c.Least)
	case c.least() > c.Rate.Capacity():
		err = fmt.Errorf("a cost of %d can never be admitted: at most %d units are, at once", c.least(), c.Rate.Capacity())
	}
	return limitBug(c.Key, err)
}

func limitBug(key string, err error) error {
	if err == nil {
		return nil
	}
	return &interlock.Error{Op: "limit", Name: key, Kind: interlock.Bug, Err: err}
}

func (c Charge) least() int64 {
	if c.Least > 0 {
		return c.Least
	}
	return c.Cost
}

// Numbers are what a script needs to know to do as [Decide]: algorithm, count, period, capacity,
// unit, speed, cost and the least that will do.
func (c Charge) Numbers() [8]int64 {
	r := c.Rate
	return [8]int64{int64(r.Algorithm), r.Count, r.Period.Microseconds(), r.Capacity(), r.unit(), r.speed(), c.Cost, c.least()}
}

// A LimitCall takes all of its charges or nothing. They have different keys.
type LimitCall []Charge

// Check refuses what no limiter may be asked, as a Bug.
func (l LimitCall) Check() error {
	if len(l) == 0 || len(l) > MaxCharges {
		return limitBug("", fmt.Errorf("a call has 1 to %d charges, not %d", MaxCharges, len(l)))
	}
	for i, c := range l {
		if err := c.Check(); err != nil {
			return err
		}
		if len(l) > 1 && c.Least > 0 {
			return limitBug(c.Key, fmt.Errorf("a call of %d charges takes all or nothing", len(l)))
		}
		for _, other := range l[:i] {
			if other.Key == c.Key {
				return limitBug(c.Key, fmt.Errorf("the key is charged twice in one call"))
			}
		}
	}
	return nil
}

// A Decision is what one limit says to a charge.
type Decision struct {
	Allowed    bool          // by this limit; what is consumed depends on all of the call
	Granted    int64         // how many units were consumed
	Remaining  int64         // how many could be consumed now
	RetryAfter time.Duration // until the least that will do is there; 0 if all was granted
	ResetAfter time.Duration // until nothing counts any more
}

// A LimitAnswer is that to one call: a decision for each charge, or an error.
type LimitAnswer struct {
	Decisions []Decision
	Err       error
}

// Allowed reports whether all limits allow the call.
func (a LimitAnswer) Allowed() bool {
	for _, d := range a.Decisions {
		if !d.Allowed {
			return false
		}
	}
	return a.Err == nil
}

// A Limiter keeps the state of limits. Its methods are safe for concurrent use.
type Limiter interface {
	// Take decides calls, one after the other, each in one atomic step by the clock of the
	// store, as [Decide] does. A call that is refused consumes nothing. The answers have the
	// order of the calls; a call that [LimitCall.Check] refuses is a Bug, and does not keep
	// others from their answer. After an Uncertain error the call may have consumed what it
	// asked for. State is kept at least until nothing counts any more. Take retries nothing.
	Take(ctx context.Context, calls []LimitCall) []LimitAnswer
}

// LimitState is what a store keeps of a limit; empty is one of which nothing is consumed. The
// first number is the algorithm. Stores keep it as they get it.
type LimitState []int64

// micros rounds up.
func micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}
