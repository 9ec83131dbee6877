package saga

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Policy sets how failed calls are repeated; the zero value works. Attempts does not bound the
// pivot while its outcome is unknown, nor the steps after it.
type Policy struct {
	// First bounds the first wait, and the bound doubles with each wait. A wait is random
	// below its bound, and at least a millisecond. 0 means 100 milliseconds.
	First time.Duration
	// Max bounds every wait; 0 means a minute. A saga that waits for longer than a minute
	// is not kept in memory.
	Max time.Duration
	// Attempts is the number of calls of a step up to the pivot before the saga is aborted;
	// 0 means 10. An [InProgress] answer does not count. A new owner of the saga counts from
	// the number in the journal: see the package comment.
	Attempts int
	// Undos is the number of calls of an undo before it is dead; 0 means 20.
	Undos int
}

func (p Policy) resolve() Policy {
	p.First = cmp.Or(max(p.First, 0), 100*time.Millisecond)
	p.Max = cmp.Or(max(p.Max, 0), time.Minute)
	p.Attempts = cmp.Or(max(p.Attempts, 0), 10)
	p.Undos = cmp.Or(max(p.Undos, 0), 20)
	return p
}

// verdict is the consequence of a failed call.
type verdict int

const (
	again      verdict = iota
	notDone            // given up; it is not done
	perhapsNot         // given up; it may be done
	markDead           // the undo is given up
)

// attempts are the calls of one step or its undo.
type attempts struct {
	phase      phase
	attempts   int            // failed ones
	by         map[string]int // failed ones by class, for classes with a policy
	mayBeDone  bool           // an earlier call may have been applied
	err        error          // of the last call
	inProgress bool           // the target was processing the last call
	timed      bool           // the target asks for the time of the next call
	next       time.Time      // not before
	noted      time.Time      // when a failed call was last recorded
	calls      int
	target     string
}

// failed counts a call, and returns its policy and the number of failures under that policy.
func (t *attempts) failed(s *step, c branch.Class) (Policy, int) {
	if t.inProgress = c == branch.ClassInProgress; t.inProgress {
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

// judge returns the verdict of a failed call. A refusal after a call that may have been applied does not
// show that nothing was done, so the step is undone. For the pivot the target's answer is final.
func (t *attempts) judge(p Policy, attempts int, c branch.Class) verdict {
	was := t.mayBeDone
	t.mayBeDone = t.mayBeDone || c == branch.ClassUnknown || c == branch.ClassInProgress
	spent := c != branch.ClassInProgress && attempts >= p.Attempts
	switch t.phase {
	case inUndo:
		if c == branch.ClassFail || c != branch.ClassInProgress && attempts >= p.Undos {
			return markDead
		}
	case atPivot:
		if c == branch.ClassFail || spent && !t.mayBeDone {
			return notDone
		}
	case beforePivot:
		switch {
		case c == branch.ClassFail && !was, spent && !t.mayBeDone:
			return notDone
		case c == branch.ClassFail, spent:
			return perhapsNot
		}
	}
	return again
}

// shouldRecord reports whether to record a failed call: the first, second, fourth and so on, one an hour,
// and one that ends the count of take-overs. A long wait records it anyway.
func (t *attempts) shouldRecord(now time.Time, takenOver bool) bool {
	if takenOver {
		return true
	}
	if t.inProgress || t.next.Sub(now) > parked {
		return false
	}
	return t.attempts&(t.attempts-1) == 0 || now.Sub(t.noted) >= time.Hour
}

// record returns the record of the failed attempts and the last error.
func (t *attempts) record(key string, leave bool) journal.Entry {
	w := why{Attempts: t.attempts, By: t.by, Calls: t.calls, Next: t.next.UnixMilli(), Parked: leave}
	if t.err != nil {
		w.Error = coordinator.Truncate(t.err.Error(), coordinator.MaxFailing)
	}
	return record(recordTried, key, w)
}

// retryNow makes waiting calls due, and that of OnEnd, unless their target named a time.
func (c *execution) retryNow() {
	if !c.timed {
		c.again = time.Time{}
	}
	for _, t := range c.trials {
		if !t.timed {
			t.next = time.Time{}
		}
	}
}

// park leaves the saga until its due time, and records what the next turn must know.
func (c *execution) park(now, until time.Time, waiting []*progress) action {
	var entries []journal.Entry
	for _, p := range waiting {
		if t := c.trials[p.key]; t != nil && t.err != nil {
			entries = append(entries, t.record(p.key, true))
		}
	}
	if c.m.state == Running {
		for _, p := range c.m.steps {
			if p.fate == inFlight && !p.wait && c.notCalled[p.key] {
				entries = append(entries, journal.Entry{Kind: recordNever, Step: p.key})
			}
		}
	}
	if len(entries)+len(c.pending) == 0 && !c.scheduled.Equal(until.Truncate(time.Millisecond)) {
		p := waiting[0]
		w := why{Error: p.err, Attempts: p.attempts, By: p.by, Calls: p.calls, Next: until.UnixMilli(), Parked: true}
		entries = []journal.Entry{record(recordTried, p.key, w)}
	}
	c.note(now, false, entries...)
	return action{write: len(c.pending) > 0, due: until, rest: true}
}

// A call that crashes its process will crash the next owner's process too. So an owner records a
// take-over during a possible call in the journal before it makes a call; any answer ends the count.
// After too many take-overs the saga is halted: a dead letter, whatever its decision, until an
// operator resumes it.

// careful is the number of take-overs in a row after which each answer is durable before the next call:
// then the step that crashes is known.
const careful = 2

// takeOver records that a former owner may have made calls and has recorded no answer.
func (c *execution) takeOver(now time.Time, exhausted func(takeOvers int) bool) {
	if !c.m.mayHaveCalled(now) {
		return
	}
	taken := journal.Entry{Kind: recordTaken}
	m, err := c.m.with(taken)
	if n := m.takeOvers; err != nil || n == c.m.takeOvers || !exhausted(n) {
		c.note(now, true, taken)
		return
	}
	if c.m.atEnd { // further calls of OnEnd are given up
		c.note(now, true, journal.Entry{Kind: recordEnd})
		return
	}
	what := "its function ran"
	if calling := c.m.calling(); len(calling) > 0 {
		what = fmt.Sprintf("step %q was called", calling[0].key)
		if c.m.state == Undoing {
			what = fmt.Sprintf("step %q was undone", calling[0].key)
		}
	}
	reason := fmt.Sprintf("it was taken over %d times in a row while %s, and no call was answered: its process seems to crash each time", m.takeOvers, what)
	c.note(now, true, record(recordHalted, "", why{Error: reason}))
}

// mayHaveCalled reports whether an owner may have made a call by now.
func (m *machine) mayHaveCalled(now time.Time) bool {
	if m.atEnd {
		return !m.over
	}
	if m.state.Final() || now.Before(m.start) {
		return false
	}
	calling := m.calling()
	for _, p := range calling {
		if !p.wait && !now.Before(p.next) {
			return true
		}
	}
	return len(calling) == 0 && m.state != Undoing
}

func (m *machine) countTakeOver(journal.Entry) error {
	if m.state.Final() && !m.atEnd {
		return errOrder
	}
	rested := false
	for _, p := range m.calling() {
		if rested = rested || p.parked; !p.parked {
			p.calls, p.lost = p.calls+1, p.lost+1
		}
		p.next, p.parked = time.Time{}, false
	}
	if !rested {
		m.takeOvers++
	}
	return nil
}

func (m *machine) halt(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	if m.state.Final() {
		return errOrder
	}
	m.before, m.state, m.halted = m.state, DeadLetter, w.Error
	return nil
}

// release resumes a halted saga after an operator's record.
func (m *machine) release(e journal.Entry) error {
	m.released = false
	if m.halted == "" || e.Kind == recordRemind || e.Kind == recordCrossed || e.Kind == recordResolved || e.Kind == recordEnd {
		return nil
	}
	switch {
	case e.Kind == recordRetry, e.Kind == recordSkip, e.Kind == recordSettle, e.Kind == recordDecide && e.Step == decideAbort:
		m.state, m.before, m.halted = m.before, "", ""
		m.released = true
		return nil
	}
	return errOrder
}

// handOver records that the owner has not crashed, which ends the count of take-overs.
func (c *execution) handOver() {
	if c.m.atEnd && !c.m.over {
		c.note(time.Time{}, false, c.ongoing(nil))
		return
	}
	calling := c.m.calling()
	if i := slices.IndexFunc(calling, func(p *progress) bool { return !p.wait }); i >= 0 {
		p := calling[i]
		c.note(time.Time{}, false, record(recordTried, p.key, why{Error: p.err, Attempts: p.attempts, By: p.by, Calls: p.calls}))
	}
}

// ongoing returns the record that OnEnd is called again: its last call failed, or its owner has not crashed.
func (c *execution) ongoing(err error) journal.Entry {
	w := why{Attempts: c.reports}
	if err != nil {
		w.Error = coordinator.Truncate(err.Error(), coordinator.MaxFailing)
	}
	return record(recordTried, "", w)
}
