package saga

import (
	"fmt"
	"maps"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A call is one of a step or of an undo that is to be made.
type call struct {
	step  *step // whose function it is
	p     progress
	phase phase
	trial *trial

	former int // with which of its former inputs the target has done it, from 1; 0 with that of now
}

// call is the one of a step that is next.
func (c *execution) call(s *step, p *progress) *call {
	t := c.trials[p.key]
	if t == nil {
		// What is done together with its record was not done if there is none.
		maybe := !c.uncalled[p.key] && (s.local == nil || c.m.state == Undoing)
		t = &trial{phase: c.m.phase(p), attempts: p.attempts, by: maps.Clone(p.by), calls: p.calls, maybe: maybe, next: p.next, target: s.target}
		c.trials[p.key] = t
	}
	return &call{step: s, p: *p, phase: t.phase, trial: t}
}

// back goes on with the undos that are next, or ends what has none.
func (c *execution) backward(now time.Time) (action, error) {
	undoing := c.m.undoing()
	if len(undoing) == 0 {
		err := c.note(now, true, c.m.ending())
		return action{write: true, rest: !c.m.notify}, err
	}
	var all []*call
	var missing error
	for _, p := range undoing {
		s := c.undoer(p)
		if s == nil {
			missing = &MismatchError{ID: c.id, Step: p.key, Problem: fmt.Sprintf(
				"it is to be undone by %q, and the definition of %q has no undo of that name: give it one", p.undo, c.plan.name)}
			continue
		}
		all = append(all, c.call(s, p))
	}
	if len(all) == 0 {
		return action{write: len(c.pending) > 0}, missing
	}
	return c.proceed(now, all)
}

// proceed makes the calls that are due, or waits for the first that will be.
func (c *execution) proceed(now time.Time, all []*call) (action, error) {
	var ready []*call
	var waiting []*progress
	var soonest time.Time
	for _, each := range all {
		if next := each.trial.next; !now.Before(next) {
			ready = append(ready, each)
		} else if waiting = append(waiting, c.m.find(each.p.key)); soonest.IsZero() || next.Before(soonest) {
			soonest = next
		}
	}
	switch {
	case len(ready) == 0:
		return c.pause(now, soonest, waiting)
	case c.forced || len(c.pending) > 0 && (c.careful || now.Sub(c.since) >= stale), ready[0].local() && len(c.pending) >= driver.MaxRecords:
		return action{write: true}, nil
	}
	return action{calls: ready}, nil
}

// pause waits until a time, or no longer than the saga may take.
func (c *execution) pause(now, until time.Time, waiting []*progress) (action, error) {
	if c.m.abortable() && !c.m.deadline.IsZero() && c.m.deadline.Before(until) {
		until = c.m.deadline
	}
	wait := until.Sub(now)
	if wait > parked {
		return c.park(now, until, waiting)
	}
	if c.forced || len(c.pending) > 0 && wait >= stale {
		return action{write: true}, nil
	}
	return action{wait: until}, nil
}

// park leaves the saga to its due time. What has to be known then is written.
func (c *execution) park(now, until time.Time, waiting []*progress) (action, error) {
	var entries []journal.Entry
	for _, p := range waiting {
		if t := c.trials[p.key]; t != nil && t.err != nil {
			entries = append(entries, t.tried(p.key, true))
		}
	}
	if c.m.state == Running {
		for _, p := range c.m.steps {
			if p.fate == inFlight && !p.wait && c.uncalled[p.key] {
				entries = append(entries, journal.Entry{Kind: recordNever, Step: p.key})
			}
		}
	}
	if len(entries)+len(c.pending) == 0 && !c.scheduled.Equal(until.Truncate(time.Millisecond)) {
		p := waiting[0]
		w := why{Error: p.err, Attempts: p.attempts, By: p.by, Calls: p.calls, Next: until.UnixMilli(), Parked: true}
		entries = []journal.Entry{record(recordTried, p.key, w)}
	}
	if err := c.note(now, false, entries...); err != nil {
		return action{}, err
	}
	return action{write: len(c.pending) > 0, due: until, rest: true}, nil
}

// called takes that calls are being made.
func (c *execution) called(calls []*call) {
	for _, each := range calls {
		c.uncalled[each.p.key] = false
		each.trial.calls++
	}
}

// took takes the outcome of a call, and says what follows.
func (c *execution) took(now time.Time, each *call, output []byte, err error, random float64) (verdict, error) {
	t, key := each.trial, each.p.key
	if err == nil {
		if each.local() {
			return again, nil // accepted took it
		}
		if t.phase == inUndo {
			return again, c.note(now, false, journal.Entry{Kind: recordUndone, Step: key})
		}
		return again, c.note(now, false, journal.Entry{Kind: recordDone, Step: key, Data: output})
	}
	class, after := branch.ClassOf(err)
	if each.local() && class == branch.ClassUnknown {
		class = branch.ClassRetry // its transaction was not committed
	}
	policy, attempts := t.failed(each.step, class)
	v := t.judge(policy, attempts, class)
	t.maybe = t.maybe && !each.local()
	t.err, t.next = err, now.Add(policy.delay(class, after, attempts, random))
	switch v {
	case bury:
		return v, c.note(now, false, record(recordDead, key, why{Error: said(err), Attempts: t.attempts}))
	case notDone, perhapsNot:
		return v, c.note(now, false, record(recordFailed, key, why{Unknown: v == perhapsNot, Error: said(err), Attempts: t.attempts}))
	}
	if !t.notable(now, c.m.takeOvers > 0) {
		return v, nil
	}
	t.noted = now
	return v, c.note(now, false, t.tried(key, false))
}

// notable reports whether a failed call is to be seen in the journal: of a number that
// grows the first, second, fourth and so on, and one an hour; or if an answer ends the
// count of take-overs. What is left alone for long is written with that.
func (t *trial) notable(now time.Time, takenOver bool) bool {
	if takenOver {
		return true
	}
	if t.ongoing || t.next.Sub(now) > parked {
		return false
	}
	return t.attempts&(t.attempts-1) == 0 || now.Sub(t.noted) >= time.Hour
}

// tried is the record of how often a step was tried, and of its last error.
func (t *trial) tried(key string, leave bool) journal.Entry {
	w := why{Attempts: t.attempts, By: t.by, Calls: t.calls, Next: t.next.UnixMilli(), Parked: leave}
	if t.err != nil {
		w.Error = cut(t.err.Error(), longestTried)
	}
	return record(recordTried, key, w)
}

// healed has what waits repeated at once, unless its target has said when.
func (c *execution) healed() {
	for _, t := range c.trials {
		if !t.ongoing {
			t.next = time.Time{}
		}
	}
}

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
	// aborted; 0 means 10. An [InProgress] answer does not count. A new owner of the saga
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
	if t.ongoing = c == branch.ClassInProgress; t.ongoing {
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
	t.maybe = t.maybe || c == branch.ClassUnknown || c == branch.ClassInProgress
	spent := c != branch.ClassInProgress && attempts >= p.Attempts
	switch t.phase {
	case inUndo:
		if c == branch.ClassFail || c != branch.ClassInProgress && attempts >= p.Undos {
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
	if c == branch.ClassInProgress {
		return max(ongoing, p.First/8, shortest)
	}
	return max(backoff.Policy{First: p.First, Max: p.Max}.Delay(max(attempts, 1), random), shortest)
}
