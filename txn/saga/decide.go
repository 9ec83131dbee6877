package saga

import (
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// The decision of a machine, and what follows it.

// decide takes the decision, which is the only one. To commit all must be done. To
// abort, the pivot must not have been; what is in flight then may have happened.
func (m *machine) decide(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	switch pivot := m.pivot(); {
	case m.state != Running:
		return errOrder
	case e.Step == decideCommit && m.quiet() && !m.broken():
		m.state = Completing
	case e.Step == decideAbort && (pivot == nil || pivot.fate == refused):
		m.state, m.reason = Undoing, w.Error
		m.abandon()
	default:
		return errOrder
	}
	return nil
}

// abandon gives up what is in flight.
func (m *machine) abandon() {
	for i := range m.steps {
		p := &m.steps[i]
		if p.fate == refused { // what is shown of it stays
			continue
		}
		switch p.attempts, p.by, p.calls, p.lost, p.next, p.parked = 0, nil, 0, 0, (time.Time{}), false; {
		case p.fate == inFlight && p.wait:
			p.fate = refused
		case p.fate == inFlight:
			p.fate, p.adrift = unknown, true
		}
	}
}

// back takes the outcome of an undo that is next.
func (m *machine) back(e journal.Entry) error {
	var w why
	for _, p := range m.undoing() {
		switch {
		case p.key != e.Step:
			continue
		case e.Kind == recordUndone:
			p.fate = undone
		default:
			if err := json.Unmarshal(e.Data, &w); err != nil {
				return err
			}
			p.was, p.fate, p.adrift, p.err, p.attempts = p.fate, dead, false, w.Error, max(p.attempts, w.Attempts)
		}
		m.settle()
		return nil
	}
	return errOrder
}

// settle makes a saga a dead letter once nothing more can be undone, and only then.
func (m *machine) settle() {
	if m.state != Undoing && m.state != DeadLetter {
		return
	}
	if m.state = Undoing; len(m.undoing()) == 0 && m.has(dead) {
		m.state = DeadLetter
	}
}

func (m *machine) remind(journal.Entry) error {
	if m.state != DeadLetter {
		return errOrder
	}
	return nil
}

func (m *machine) end(journal.Entry) error {
	if !m.atEnd {
		if err := m.finish(journal.Entry{}); err != nil {
			return err
		}
	}
	m.over = true
	return nil
}

// finish takes that nothing is left to do.
func (m *machine) finish(journal.Entry) error {
	switch {
	case m.atEnd:
		return errOrder
	case m.state == Completing && m.quiet():
		m.state = Succeeded
	case m.state == Undoing && len(m.undoing()) == 0:
		m.state = Compensated
	case m.state != Resolved:
		return errOrder
	}
	m.atEnd = true
	return nil
}
