package driver

import (
	"testing"
	"time"
)

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
