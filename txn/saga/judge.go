package saga

import (
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Policy is how a call is repeated; the zero value works. What may have happened,
// and what must, is repeated whatever Attempts says: the pivot while its outcome is
// not known, and every step behind it.
type Policy struct {
	// First is the bound of the first wait; each is twice the one before, and drawn
	// at random below its bound. 0 means 100 milliseconds. No wait is shorter than a
	// millisecond.
	First time.Duration
	// Max is the bound of every wait; 0 means a minute. A saga that waits for longer
	// than a minute is not kept in memory.
	Max time.Duration
	// Attempts is how often a step up to the pivot is tried before the saga is
	// aborted; 0 means 10. An [Ongoing] answer does not count. A new owner of the saga
	// counts from what the journal has: see the package comment.
	Attempts int
	// Undos is how often an undo is tried before it is given up as dead; 0 means 20.
	Undos int
}

func (p Policy) resolve() Policy {
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&p.First, 100 * time.Millisecond}, {&p.Max, time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	if p.Attempts <= 0 {
		p.Attempts = 10
	}
	if p.Undos <= 0 {
		p.Undos = 20
	}
	return p
}

// verdict is what follows from a call that did not succeed.
type verdict int

const (
	again      verdict = iota
	notDone            // given up, and it has not happened
	perhapsNot         // given up, and it may have happened
	bury               // the undo is given up
)

// trial is the calls of one step, or of its undo.
type trial struct {
	phase    phase
	attempts int            // that failed
	by       map[string]int // of them, by the class of what they failed with, where that has a policy
	maybe    bool           // an earlier call may have happened
	err      error          // of the last call
	ongoing  bool           // it is the target that has said when to ask again
	next     time.Time      // not before
	noted    time.Time      // when the journal got to know of a failed call
	calls    int
	target   string
}

// failed counts a call, and gives the policy by which it is repeated and how many
// such there were.
func (t *trial) failed(s *step, c branch.Class) (Policy, int) {
	if t.ongoing = c == branch.ClassOngoing; t.ongoing {
		return s.policy, t.attempts
	}
	t.attempts++
	if p, own := s.by[c]; own {
		if t.by == nil {
			t.by = map[string]int{}
		}
		t.by[c.String()]++
		return p, t.by[c.String()]
	}
	return s.policy, t.attempts
}

// judge takes the outcome of a call. A refusal that follows a call which may have
// happened is no proof that nothing did: what can be undone is. The pivot cannot be,
// and there the target's word is final.
func (t *trial) judge(p Policy, attempts int, c branch.Class) verdict {
	was := t.maybe
	t.maybe = t.maybe || c == branch.ClassUnknown || c == branch.ClassOngoing
	spent := c != branch.ClassOngoing && attempts >= p.Attempts
	switch t.phase {
	case inUndo:
		if c == branch.ClassFail || c != branch.ClassOngoing && attempts >= p.Undos {
			return bury
		}
	case atPivot:
		if c == branch.ClassFail || spent && !t.maybe {
			return notDone
		}
	case beforePivot:
		switch {
		case c == branch.ClassFail && !was, spent && !t.maybe:
			return notDone
		case c == branch.ClassFail, spent:
			return perhapsNot
		}
	}
	return again
}

// shortest is the least wait: what fails at once for ever does not keep a processor busy.
const shortest = time.Millisecond

// delay is the wait after a number of failed attempts.
func (p Policy) delay(c branch.Class, ongoing time.Duration, attempts int, random float64) time.Duration {
	if c == branch.ClassOngoing {
		return max(ongoing, p.First/8, shortest)
	}
	return max(backoff.Policy{First: p.First, Max: p.Max}.Delay(max(attempts, 1), random), shortest)
}
