package interlock

import (
	"fmt"
	"strconv"
	"time"
)

// A Token orders the claims on one name: a later claim has a larger token. It is always above
// zero, is compared with <, and fits a SQL BIGINT.
//
// The upper 51 bits are a counter that the lock system draws at the moment of the grant. The
// lower 12 bits number the hand-overs of one grant inside one process. The zero Token means "no
// token", and every guard rejects it.
type Token int64

const (
	subBits = 12

	// MaxSub is the largest hand-over number a token can carry.
	MaxSub = 1<<subBits - 1
	// MaxCounter is the largest counter a token can carry.
	MaxCounter = 1<<51 - 1
)

// epoch is the origin of counters: the initial counter of a namespace is at least the
// microseconds since then. 51 bits of microseconds last until 2091.
var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// EpochUnixMicro is the origin of counters, in microseconds since 1970, for stores that compute
// the floor from their own clock.
const EpochUnixMicro = 1_577_836_800_000_000

// MaxAhead is the maximum difference of a token's counter to a guard's own clock. A counter
// starts at the clock, and no system makes a million grants a second, so the counter cannot
// overtake the clock. A day allows for clocks that differ.
const MaxAhead = 24 * time.Hour

// CounterAt returns the floor of a counter at time t: microseconds since the start of 2020, and
// 1 for any earlier time. A driver that opens a namespace raises its counter to at least this
// floor; after that only the system's own order moves it. So a fresh data directory, a restored
// backup or another system still issues higher tokens, if clocks are sane at that moment.
func CounterAt(t time.Time) int64 {
	return max(1, t.Sub(epoch).Microseconds())
}

// NewToken combines a counter (1 to [MaxCounter]) and a hand-over number (0 to [MaxSub]).
// Outside these bounds it returns an error of kind [Bug]: a counter that overflows must stop
// the system, never wrap.
func NewToken(counter int64, sub int) (Token, error) {
	if counter < 1 || counter > MaxCounter || sub < 0 || sub > MaxSub {
		return 0, &Error{Op: "make token", Kind: Bug,
			Err: fmt.Errorf("counter %d, hand-over %d out of range", counter, sub)}
	}
	return Token(counter<<subBits | int64(sub)), nil
}

// Counter returns the part that the lock system drew.
func (t Token) Counter() int64 { return int64(t) >> subBits }

// Sub returns the number of the hand-over inside one process; 0 is the grant itself.
func (t Token) Sub() int { return int(t & MaxSub) }

// Valid reports whether t could have been issued: it is above zero.
func (t Token) Valid() bool { return t > 0 && t.Counter() > 0 }

// Next returns the token of the next hand-over inside the process. ok is false if no hand-over
// number is left; the number never wraps into the counter.
func (t Token) Next() (next Token, ok bool) {
	if t.Sub() == MaxSub {
		return t, false
	}
	return t + 1, true
}

// String returns the decimal form of the whole number, as guards store it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// ParseToken parses the result of [Token.String]. For any other text, and any number that could
// not have been issued, it returns an error of kind [Definite].
func ParseToken(s string) (Token, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || !Token(n).Valid() || Token(n).String() != s { // such as leading zeros
		return 0, &Error{Op: "parse token", Kind: Definite, Err: fmt.Errorf("%q is not a token", s)}
	}
	return Token(n), nil
}
