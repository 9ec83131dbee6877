package version

import (
	"sync/atomic"

	"github.com/interlock-dev/interlock/observe"
)

// Stats counts the results of updates. The zero value is ready. It is safe for concurrent use,
// and several updaters may share it.
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

// ConflictRate returns the share of attempts that met a conflict: from 0 to 1, and 0 if there
// were no attempts.
func (c Counts) ConflictRate() float64 {
	if c.Attempts == 0 {
		return 0
	}
	return float64(c.Conflicts) / float64(c.Attempts)
}

// Counts returns the numbers; it reads each separately.
func (s *Stats) Counts() Counts {
	return Counts{Attempts: s.attempts.Load(), Conflicts: s.conflicts.Load(), Retries: s.retries.Load(),
		Exhausted: s.exhausted.Load(), HandedOff: s.handedOff.Load()}
}

// Hooks returns hooks that count; pass them in Options.
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
