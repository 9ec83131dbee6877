package driver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

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
