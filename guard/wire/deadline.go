package wire

import "time"

// A Deadline is counted from an instant by both clocks that there are, since Go's
// monotonic one may stand still while the machine is suspended, and that on the
// wall may be set: what has passed is what the one of them says that says more.
// The zero value has passed.
type Deadline struct {
	from time.Time
	left time.Duration
}

// After is the deadline that lies d after from, a reading of [time.Now].
func After(from time.Time, d time.Duration) Deadline { return Deadline{from, d} }

// Remaining is how long it is until the deadline, at now, a later reading of the
// same clock; zero or less once it has passed.
func (d Deadline) Remaining(now time.Time) time.Duration {
	monotonic, wall := now.Sub(d.from), now.Round(0).Sub(d.from.Round(0))
	return d.left - max(monotonic, wall)
}
