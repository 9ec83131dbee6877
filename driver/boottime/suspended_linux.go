package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// gap is how long the two readings around CLOCK_BOOTTIME may be apart to be
// believed: a stop between them would look like a suspend.
const gap = 50 * time.Microsecond

// suspended is CLOCK_BOOTTIME − CLOCK_MONOTONIC: the time this machine has
// spent suspended since it was booted.
func suspended() time.Duration {
	best := time.Duration(1<<63 - 1)
	var s time.Duration
	for range 8 {
		before := read(unix.CLOCK_MONOTONIC)
		boot := read(unix.CLOCK_BOOTTIME)
		after := read(unix.CLOCK_MONOTONIC)
		if after-before < best {
			best, s = after-before, boot-before
		}
		if best < gap {
			break
		}
	}
	return s
}

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic("boottime: clock_gettime: " + err.Error()) // no Linux since 2.6.39 lacks these clocks
	}
	return time.Duration(ts.Nano())
}
