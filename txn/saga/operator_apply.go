package saga

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// What operators do to a machine.

func noted(e journal.Entry) (n note, err error) {
	if err = json.Unmarshal(e.Data, &n); err == nil && (n.Actor == "" || n.Reason == "") {
		err = errors.New("it does not say who did it, and why")
	}
	return n, err
}

// retry has tried again at once what waits, or was given up: a step or its undo, or with
// no step all of them. Its attempts count from zero again. The input can be another one from now on, but not that of a step which could have been called and
// may yet be undone by what it was called with.
func (m *machine) retry(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	found, calling := m.released && e.Step == "", m.calling()
	for i := range m.steps {
		p := &m.steps[i]
		if e.Step != "" && p.key != e.Step || p.fate != dead && !m.pending(p) || e.Step == "" && p.fate != dead && !slices.Contains(calling, p) {
			continue
		}
		if n.Input != nil {
			if m.state == Running {
				return errors.New("the input of a step can be another one only behind the pivot, or to undo it")
			}
			p.former = append(slices.Clip(p.former), given{p.input, p.edited})
			p.input, p.edited = n.Input, true
		}
		found, p.attempts, p.lost, p.by, p.next, p.parked = true, 0, 0, nil, time.Time{}, false
		if p.fate == dead {
			p.fate = p.was
		}
	}
	if !found {
		return errOrder
	}
	m.settle()
	return nil
}

// pending reports whether a step, or its undo, is what the saga is at.
func (m *machine) pending(p *progress) bool {
	if m.state == Undoing {
		return p.undoable()
	}
	return p.fate == inFlight && !p.wait
}

// skip goes on without an undo, or without a step behind the decision to commit.
func (m *machine) skip(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	p := m.find(e.Step)
	if p == nil || p.fate != dead && (m.state == Running || !m.pending(p)) {
		return errOrder
	}
	p.fate, p.err = skipped, n.Actor+": "+n.Reason
	m.settle()
	return nil
}

// learn takes the outcome that a person has recorded of a step in flight.
func (m *machine) learn(e journal.Entry) error {
	if _, err := noted(e); err != nil {
		return err
	}
	if p := m.find(e.Step); p == nil || p.fate != inFlight || p.wait {
		return errOrder
	}
	return nil
}

// hurry ends a wait.
func (m *machine) hurry(e journal.Entry) error {
	if _, err := noted(e); err != nil {
		return err
	}
	if e.Step == "" && !m.start.IsZero() && len(m.steps) == 0 {
		m.start = time.Time{}
		return nil
	}
	p := m.find(e.Step)
	if p == nil || p.fate != inFlight || !p.wait {
		return errOrder
	}
	p.over = true
	return nil
}

// resolve closes a dead letter.
func (m *machine) resolve(e journal.Entry) error {
	n, err := noted(e)
	if err != nil {
		return err
	}
	if m.state != DeadLetter {
		return errOrder
	}
	m.state, m.resolved = Resolved, &n
	return nil
}
