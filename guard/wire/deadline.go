package wire

import "time"

// A Deadline is measured on two clocks: Go's monotonic clock, which may stop while the machine
// is suspended, and the wall clock, which may be set. The elapsed time is the greater of the
// two. The zero value has passed.
type Deadline struct {
	from time.Time
	left time.Duration
}

// After returns the deadline d after from, a reading of [time.Now].
func After(from time.Time, d time.Duration) Deadline { return Deadline{from, d} }

// Remaining returns the time until the deadline at now, a later reading of the same clock; zero
// or less once it has passed.
func (d Deadline) Remaining(now time.Time) time.Duration {
	monotonic, wall := now.Sub(d.from), now.Round(0).Sub(d.from.Round(0))
	return d.left - max(monotonic, wall)
}
