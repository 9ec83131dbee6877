package saga

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// A call that crashes its process will crash the next owner's process too. So an owner records a
// take-over during a possible call in the journal before it makes a call; any answer ends the count.
// After too many take-overs the saga is halted: a dead letter, whatever its decision, until an
// operator resumes it.

// careful is the number of take-overs in a row after which each answer is durable before the next call:
// then the step that crashes is known.
const careful = 2

// takeOver records that a former owner may have made calls and has recorded no answer.
func (c *execution) takeOver(now time.Time, exhausted func(takeOvers int) bool) error {
	if !c.m.mayHaveCalled(now) {
		return nil
	}
	taken := journal.Entry{Kind: recordTaken}
	m, err := c.m.with(taken)
	if n := m.takeOvers; err != nil || n == c.m.takeOvers || !exhausted(n) {
		return c.note(now, true, taken)
	}
	if c.m.atEnd { // further calls of OnEnd are given up
		return c.note(now, true, journal.Entry{Kind: recordEnd})
	}
	what := "its function ran"
	if calling := c.m.calling(); len(calling) > 0 {
		what = fmt.Sprintf("step %q was called", calling[0].key)
		if c.m.state == Undoing {
			what = fmt.Sprintf("step %q was undone", calling[0].key)
		}
	}
	reason := fmt.Sprintf("it was taken over %d times in a row while %s, and no call was answered: its process seems to crash each time", m.takeOvers, what)
	return c.note(now, true, record(recordHalted, "", why{Error: reason}))
}

// calling returns the steps that an owner may have called last: those of the first stage in flight, or the
// undos that are next.
func (m *machine) calling() (all []*progress) {
	if m.state == Undoing {
		return m.undoing()
	}
	for i := range m.steps {
		p := &m.steps[i]
		if p.fate == inFlight && (len(all) == 0 || p.stage == all[0].stage) {
			all = append(all, p)
		}
	}
	return all
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

// cause returns why the saga is undone or halted.
func (m *machine) cause() string {
	if m.halted != "" {
		return m.halted
	}
	return m.reason
}

// dead returns the undos that were given up, and for a halted saga the steps that seem to crash.
func (m *machine) dead() (all []StepError) {
	for _, p := range m.steps {
		if p.fate == dead {
			all = append(all, StepError{Step: p.key, Err: p.err, Attempts: p.attempts})
		}
	}
	if m.halted == "" {
		return all
	}
	n := *m
	n.state = m.before
	for _, p := range n.calling() {
		all = append(all, StepError{Step: p.key, Err: m.halted, Attempts: p.attempts})
	}
	return all
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
func (c *execution) handOver() error {
	for _, p := range c.m.calling() {
		if !p.wait {
			w := why{Error: p.err, Attempts: p.attempts, By: p.by, Calls: p.calls}
			return c.note(time.Time{}, false, record(recordTried, p.key, w))
		}
	}
	return nil
}
