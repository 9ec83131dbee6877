package driver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// Text is the state as stores keep it: decimal numbers with one space between two.
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

// ParseLimitState reads a [LimitState.Text]. Without an error [Decide] takes the state; ok is
// false for what no store has written.
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

// Used is how many units the state counted when it was last written, at [LimitState.Time].
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

// Time is when the state was last written, by the clock of the store; zero of an empty one.
func (s LimitState) Time() time.Time {
	switch {
	case len(s) < 3:
		return time.Time{}
	case s[0] == int64(SlidingLog):
		return time.UnixMicro(s[len(s)-2])
	}
	return time.UnixMicro(s[1])
}

// StoredLimit is what a store keeps of one key.
type StoredLimit struct {
	Key        string
	State      LimitState    // empty if nothing is consumed
	Damaged    string        // what is stored instead of a state; empty if that is one
	ResetAfter time.Duration // until nothing counts any more; 0 if that is not known
}

// A LimitInspector is a [Limiter] whose keys an operator can list and reset.
type LimitInspector interface {
	Limiter
	// Limits lists keys that begin with prefix and of which something counts, or that are
	// damaged, in their order: the first limit of them, above zero, and whether there are more.
	Limits(ctx context.Context, prefix string, limit int) (all []StoredLimit, more bool, err error)
	// Limit shows one key.
	Limit(ctx context.Context, key string) (StoredLimit, error)
	// Reset forgets what was consumed of a key, or its damaged state, and reports whether there
	// was any. Processes that have remembered a refusal refuse until it is over.
	Reset(ctx context.Context, key string) (bool, error)
}

// DamagedLimit is the error of a call that charges a key whose state no store has written. place
// says where the state is, stored what is there.
func DamagedLimit(key, place, stored string) error {
	return &interlock.Error{Op: "limit", Name: key, Kind: interlock.Definite,
		Err: fmt.Errorf("%s holds %.100s, which is not the state of a limit; reset it with interlock limits reset", place, stored)}
}
