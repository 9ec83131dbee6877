package journal_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
)

// TestLowWater: the mark lies a margin before the oldest transaction that is
// unfinished, however late it was last appended to, and never after now.
func TestLowWater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := open(t, memory.NewJournal(), nil)
		low := func() time.Time {
			mark, err := j.LowWater(t.Context(), time.Now(), time.Minute)
			ok(t, err)
			return mark.Add(time.Minute)
		}
		same := func(what string, got, want time.Time) {
			t.Helper()
			if !got.Equal(want.Truncate(time.Millisecond)) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		same("nothing there", low(), time.Now())
		first := time.Now()
		one, err := j.Begin(t.Context(), "1", "x", due, says("begin")...)
		ok(t, err)
		time.Sleep(time.Hour)
		second := time.Now()
		two, err := j.Begin(t.Context(), "2", "x", due, says("begin")...)
		ok(t, err)
		time.Sleep(time.Hour)
		ok(t, one.Append(t.Context(), due, says("more")...))
		same("the first is unfinished", low(), first)
		ok(t, one.End(t.Context(), says("end")...))
		same("the second is", low(), second)
		ok(t, two.End(t.Context(), says("end")...))
		same("none is", low(), time.Now())
		_, err = j.LowWater(t.Context(), time.Now(), 0)
		wantKind(t, err, interlock.Bug, nil)
	})
}
