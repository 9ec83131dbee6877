package tcc

import (
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Policy is how calls are repeated; the zero value works. An Ongoing answer never
// counts, and says itself when the call is made again.
type Policy struct {
	// First is the bound of the first wait; each is twice the one before, and drawn
	// at random below its bound. 0 means 50 milliseconds.
	First time.Duration
	// Max is the bound of every wait; 0 means a minute.
	Max time.Duration
	// Attempts is how often a branch is tried before the transaction is cancelled, as far
	// as the time of its holds allows; 0 means 5.
	Attempts int
	// Refusals is how often a branch may refuse to be confirmed or cancelled, by
	// branch.Fail, before it is dead; 0 means 5. Any other failure is repeated for ever.
	Refusals int
}

func (p Policy) resolve() Policy {
	for _, d := range []struct {
		value     *time.Duration
		byDefault time.Duration
	}{{&p.First, 50 * time.Millisecond}, {&p.Max, time.Minute}} {
		if *d.value <= 0 {
			*d.value = d.byDefault
		}
	}
	for _, n := range []*int{&p.Attempts, &p.Refusals} {
		if *n <= 0 {
			*n = 5
		}
	}
	return p
}

// delay is the wait after a number of failed attempts.
func (p Policy) delay(c branch.Class, ongoing time.Duration, attempts int, random float64) time.Duration {
	if c == branch.ClassInProgress {
		return max(ongoing, p.First/8)
	}
	return backoff.Policy{First: p.First, Max: p.Max}.Delay(max(attempts, 1), random)
}

// verdict is what follows from a call that did not succeed.
type verdict int

const (
	again      verdict = iota
	notHeld            // the try is given up, and has had no effect
	perhapsNot         // the try is given up, and may have had one
	bury               // the branch is dead
)

// trial is the tries of one branch by one Run. It is pure.
type trial struct {
	attempts int  // that failed
	maybe    bool // one of them may have had an effect
}

// judge takes the outcome of a try. A refusal that follows a try which may have had an
// effect is no proof that none did.
func (t *trial) judge(p Policy, c branch.Class) verdict {
	was := t.maybe
	t.maybe = t.maybe || c == branch.ClassUnknown || c == branch.ClassInProgress
	if c == branch.ClassInProgress {
		return again
	}
	t.attempts++
	switch {
	case c == branch.ClassFail && was:
		return perhapsNot
	case c == branch.ClassFail:
		return notHeld
	case t.attempts >= p.Attempts:
		return t.over()
	}
	return again
}

// over is what is known if no more tries are made.
func (t *trial) over() verdict {
	if t.maybe {
		return perhapsNot
	}
	return notHeld
}

// settling is the calls that confirm or cancel one branch, by one owner. It is pure.
type settling struct {
	attempts int // that failed
	refusals int
}

// judge takes the outcome of a call: what was decided is called until it is done, or
// was refused too often.
func (s *settling) judge(p Policy, c branch.Class) verdict {
	if c != branch.ClassInProgress {
		s.attempts++
	}
	if c == branch.ClassFail {
		s.refusals++
	}
	if s.refusals >= p.Refusals {
		return bury
	}
	return again
}
