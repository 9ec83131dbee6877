package version

import (
	"sync/atomic"

	"github.com/interlock-dev/interlock/observe"
)

// Stats counts what happens to updates. The zero value is ready; it is safe for
// concurrent use, and one may serve several updaters.
type Stats struct {
	attempts, conflicts, retries, exhausted, handedOff atomic.Int64
}

// Counts are the numbers of a [Stats] at some time.
type Counts struct {
	Attempts  int64 // those of all updates together
	Conflicts int64 // attempts that met another writer's change
	Retries   int64 // attempts that were to be followed by another one
	Exhausted int64 // updates whose last attempt met a conflict
	HandedOff int64 // those of them that Options.HandOff took over
}

// ConflictRate is the part of attempts that met a conflict: from 0 to 1, and 0 if
// there was none.
func (c Counts) ConflictRate() float64 {
	if c.Attempts == 0 {
		return 0
	}
	return float64(c.Conflicts) / float64(c.Attempts)
}

// Counts reads the numbers, each by itself.
func (s *Stats) Counts() Counts {
	return Counts{Attempts: s.attempts.Load(), Conflicts: s.conflicts.Load(), Retries: s.retries.Load(),
		Exhausted: s.exhausted.Load(), HandedOff: s.handedOff.Load()}
}

// Hooks are what counts; give them to Options.
func (s *Stats) Hooks() *observe.Version {
	return &observe.Version{
		Attempted: func(e observe.VersionAttempted) {
			s.attempts.Add(1)
			if e.Conflict {
				s.conflicts.Add(1)
			}
		},
		Retrying: func(observe.VersionRetrying) { s.retries.Add(1) },
		Exhausted: func(e observe.VersionExhausted) {
			s.exhausted.Add(1)
			if e.HandedOff {
				s.handedOff.Add(1)
			}
		},
	}
}
