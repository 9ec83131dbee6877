package driver

import (
	"fmt"
	"strconv"
	"strings"

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

// DamagedLimit is the error of a call that charges a key whose state no store has written. place
// says where the state is, stored what is there.
func DamagedLimit(key, place, stored string) error {
	return &interlock.Error{Op: "limit", Name: key, Kind: interlock.Definite,
		Err: fmt.Errorf("%s holds %.100s, which is not the state of a limit; delete it to reset the limit", place, stored)}
}
