package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// kernel reads the clocks of Linux.
type kernel struct{}

func (kernel) boot() time.Duration      { return read(unix.CLOCK_BOOTTIME) }
func (kernel) monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC) }

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic("boottime: clock_gettime: " + err.Error()) // no Linux since 2.6.39 lacks these clocks
	}
	return time.Duration(ts.Nano())
}
