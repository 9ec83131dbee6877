package driver

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// An Algorithm is the way in which a [Rate] counts.
type Algorithm int

const (
	// GCRA is the token bucket: it drains evenly and admits Burst at once. In any interval t it
	// admits at most Burst + Count·t/Period. The generic cell rate algorithm and the token
	// bucket are mathematically the same. The first stores the time at which the bucket is
	// full, the second its level.
	GCRA Algorithm = iota
	// FixedWindow counts in windows that begin at multiples of Period. An interval of length
	// Period that crosses a boundary admits at most 2·Count.
	FixedWindow
	// SlidingCounter is approximate: it assumes that the previous window's calls were evenly
	// spread. An interval of length Period admits at most 2·Count, and Count if calls are
	// evenly spread.
	SlidingCounter
	// SlidingLog stores each admission. No interval of length Period admits more than Count,
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

// Limits of rates and calls.
const (
	MaxLog     = 1000 // the highest Count of a SlidingLog
	MaxCharges = 64   // the most charges of one call
	maxPeriod  = 366 * 24 * time.Hour
	maxLevel   = 1 << 52 // Redis computes in numbers that are exact up to 2^53
)

// A Rate allows Count units in each Period.
type Rate struct {
	Count  int64
	Period time.Duration // whole microseconds, up to 366 days
	// Burst is how many units GCRA admits at once; 0 means Count. It must be 0 for other
	// algorithms.
	Burst     int64
	Algorithm Algorithm
}

// Capacity returns how many units can be admitted at once.
func (r Rate) Capacity() int64 {
	if r.Burst > 0 {
		return r.Burst
	}
	return r.Count
}

// Check returns an error if the rate is out of range.
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

// A Charge is the cost of a call for one limit.
type Charge struct {
	Key  string // 1 to 255 bytes of UTF-8 without NUL
	Rate Rate
	// Cost is the number of units requested. With 0 the limit is only read. A negative cost
	// returns units, at most as many as were consumed.
	Cost int64
	// Least is the smallest number of units that the call accepts; 0 means Cost. It is allowed
	// only in a call with one charge.
	Least int64
}

// Check returns a Bug if the charge is invalid or can never be admitted.
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

// Numbers returns the parameters of a script that computes [Decide]: algorithm, count, period,
// capacity, unit, speed, cost and least.
func (c Charge) Numbers() [8]int64 {
	r := c.Rate
	return [8]int64{int64(r.Algorithm), r.Count, r.Period.Microseconds(), r.Capacity(), r.unit(), r.speed(), c.Cost, c.least()}
}

// A LimitCall consumes all of its charges or none. Their keys differ.
type LimitCall []Charge

// Check returns a Bug if the call is invalid.
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

// A Decision is the result of one charge.
type Decision struct {
	Allowed    bool          // by this limit; units are consumed only if all limits of the call allow it
	Granted    int64         // how many units were consumed
	Remaining  int64         // how many could be consumed now
	RetryAfter time.Duration // until Least units are available; 0 if all were granted
	ResetAfter time.Duration // until the limit is unused again
}

// A LimitAnswer is the result of one call: a decision for each charge, or an error.
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

// A Limiter stores the state of limits. Its methods are safe for concurrent use.
type Limiter interface {
	// Take decides calls in order, each in one atomic step by the store's clock, as [Decide]
	// does. The answers are in the order of the calls. A refused call consumes nothing. If
	// [LimitCall.Check] fails for a call, its error is a Bug, and the other calls are still
	// decided. After an Uncertain error the call may have consumed its units. State is kept at
	// least until the limit is unused again. Take never retries.
	Take(ctx context.Context, calls []LimitCall) []LimitAnswer
}

// LimitState is the stored state of a limit. It is empty if nothing is consumed. The first
// number is the algorithm. Stores keep the state unchanged.
type LimitState []int64

// micros converts microseconds to a Duration, capped at the largest Duration.
func micros(us int64) time.Duration {
	return time.Duration(min(us, math.MaxInt64/1000)) * time.Microsecond
}

// Text returns the state in its stored form: decimal numbers separated by single spaces.
func (s LimitState) Text() string {
	var b []byte
	for i, n := range s {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// ParseLimitState parses the result of [LimitState.Text]. If ok, [Decide] accepts the state. If
// no store can have written text, ok is false.
func ParseLimitState(text string) (s LimitState, ok bool) {
	if text == "" {
		return nil, true
	}
	for word := range strings.SplitSeq(text, " ") {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil || n > 2*maxLevel {
			return nil, false
		}
		s = append(s, int64(n))
	}
	switch Algorithm(s[0]) {
	case GCRA:
		ok = len(s) == 4 && s[3] > 0
	case FixedWindow, SlidingCounter:
		ok = len(s) == 5
	case SlidingLog:
		ok = len(s)%2 == 1 && len(s) <= 1+2*MaxLog
	}
	return s, ok
}

// Used returns how many units were consumed when the state was last written, at
// [LimitState.Time].
func (s LimitState) Used() (n int64) {
	switch {
	case len(s) == 0:
	case s[0] == int64(GCRA):
		return ceil(s[2], s[3])
	case s[0] == int64(SlidingLog):
		for i := 2; i < len(s); i += 2 {
			n += s[i]
		}
	default:
		n = s[3]
	}
	return n
}

// Time returns when the state was last written, by the store's clock; zero if the state is
// empty.
func (s LimitState) Time() time.Time {
	switch {
	case len(s) < 3:
		return time.Time{}
	case s[0] == int64(SlidingLog):
		return time.UnixMicro(s[len(s)-2])
	}
	return time.UnixMicro(s[1])
}

// StoredLimit is the stored state of one key.
type StoredLimit struct {
	Key        string
	State      LimitState    // empty if nothing is consumed
	Damaged    string        // the stored text if it is not a state; otherwise empty
	ResetAfter time.Duration // until the limit is unused again; 0 if not known
}

// A LimitInspector is a [Limiter] whose keys an operator can list and reset.
type LimitInspector interface {
	Limiter
	// Limits lists keys that start with prefix and are in use or damaged, in order. It returns
	// at most limit keys, above zero; more reports whether there are others.
	Limits(ctx context.Context, prefix string, limit int) (all []StoredLimit, more bool, err error)
	// Limit returns the state of one key.
	Limit(ctx context.Context, key string) (StoredLimit, error)
	// Reset removes the consumption of a key, or its damaged state, and reports whether there
	// was any. Processes that have cached a refusal continue to refuse until it ends.
	Reset(ctx context.Context, key string) (bool, error)
}

// DamagedLimit returns the error of a call that charges a key with a damaged state. place is
// where the state is stored, and stored is its text.
func DamagedLimit(key, place, stored string) error {
	return &interlock.Error{Op: "limit", Name: key, Kind: interlock.Definite,
		Err: fmt.Errorf("%s holds %.100s, which is not the state of a limit; reset it with interlock limits reset", place, stored)}
}
