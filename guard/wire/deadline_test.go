package wire_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/interlock-dev/interlock/guard/wire"
)

// reading is what [time.Now] would say after t, had the monotonic clock moved by
// so much, and that on the wall by so much. A time.Time that has both keeps whole
// seconds of the wall in bits 30 to 62 of its first word, and has no other way to
// have them set apart.
func reading(t time.Time, monotonic, wall time.Duration) time.Time {
	t = t.Add(monotonic)
	*(*uint64)(unsafe.Pointer(&t)) += uint64(int64((wall-monotonic)/time.Second)) << 30
	return t
}

// TestDeadlinesGoByTheClockThatSaysMore: the one on the wall if the machine has
// slept, and the other one if that on the wall was set back.
func TestDeadlinesGoByTheClockThatSaysMore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := wire.After(now, 10*time.Second)
	for _, c := range []struct{ monotonic, wall, left time.Duration }{
		{0, 0, 10 * time.Second},
		{3 * time.Second, 3 * time.Second, 7 * time.Second},
		{3 * time.Second, time.Hour, 10*time.Second - time.Hour},
		{3 * time.Second, -time.Hour, 7 * time.Second},
		{time.Hour, 3 * time.Second, 10*time.Second - time.Hour},
	} {
		at := reading(now, c.monotonic, c.wall)
		if at.Sub(now) != c.monotonic || at.Round(0).Sub(now.Round(0)) != c.wall {
			t.Fatalf("%v is read as %v, and %v on the wall", c, at.Sub(now), at.Round(0).Sub(now.Round(0)))
		}
		if got := d.Remaining(at); got != c.left {
			t.Errorf("%v: %v remain", c, got)
		}
	}
	if (wire.Deadline{}).Remaining(now) > 0 {
		t.Error("the zero value is in the future")
	}
}
