package saga

import (
	"maps"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
)

// What can be chosen for a step.

// Uncompensable declares that the step needs no undo, though it stands before the
// pivot: it only reads, or what it leaves does no harm.
func (a Action[I, O]) Uncompensable() Action[I, O] { a.s.keep = true; return a }

// Pivot makes the step the last that may fail: once it is done the saga goes on to
// its end, and steps behind it are retried until they are done. A saga has one at
// most. The pivot itself has no undo; while its outcome is not known it is retried.
func (a Action[I, O]) Pivot() Action[I, O] { a.s.pivot = true; return a }

// Timeout bounds each call of the action and of the undo, counted from its last
// [Beat] if it beats; 0 means 30 seconds.
func (a Action[I, O]) Timeout(d time.Duration) Action[I, O] { a.s.timeout = d; return a }

// MaxTime bounds each call however often it beats; 0 is no bound.
func (a Action[I, O]) MaxTime(d time.Duration) Action[I, O] { a.s.longest = d; return a }

// Target names what the step calls, for the coordinator's limits: steps of one
// target share its places. Empty means the step's name.
func (a Action[I, O]) Target(name string) Action[I, O] { a.s.target = name; return a }

// Retry says how calls are repeated.
func (a Action[I, O]) Retry(p Policy) Action[I, O] { a.s.policy = p; return a }

// RetryOn says how calls are repeated that fail with errors of a class, counted by
// themselves.
func (a Action[I, O]) RetryOn(c branch.Class, p Policy) Action[I, O] {
	a.s.by = maps.Clone(a.s.by)
	if a.s.by == nil {
		a.s.by = map[branch.Class]Policy{}
	}
	a.s.by[c] = p
	return a
}

// resolved is a step with what was not chosen.
func (s step) resolved() step {
	s.policy = s.policy.resolve()
	s.by = maps.Clone(s.by)
	for c, p := range s.by {
		s.by[c] = p.resolve()
	}
	if s.timeout <= 0 {
		s.timeout = 30 * time.Second
	}
	if s.longest > 0 {
		s.timeout = min(s.timeout, s.longest)
	}
	if s.target == "" {
		s.target = s.name
	}
	return s
}
