package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// State is where a saga stands.
type State string

// The states. RUNNING goes on to COMPLETING by a decision to commit, or to UNDOING
// by one to abort; a saga has one decision at most.
const (
	Running     State = "RUNNING"     // undecided
	Completing  State = "COMPLETING"  // what is left is done, whatever happens
	Undoing     State = "UNDOING"     // what was done is undone
	Succeeded   State = "SUCCEEDED"   // each step is done
	Compensated State = "COMPENSATED" // nothing is left of it but what needs no undo
	DeadLetter  State = "DEAD_LETTER" // at least one undo was given up: a person has to look
)

// Final reports whether the engine does nothing more.
func (s State) Final() bool { return s == Succeeded || s == Compensated || s == DeadLetter }

// fate is what is known of a step that was sent.
type fate int

const (
	inFlight fate = iota
	done
	refused // definitely not done
	unknown // given up, and perhaps done
	undone
	dead
)

// progress is a step that was sent.
type progress struct {
	name   string
	undo   string // empty if there is nothing to undo
	pivot  bool
	fate   fate
	output json.RawMessage
	err    string
}

// machine is a saga as its records tell it. It is pure: with says what is so after
// more records, or that they cannot follow, and the functions below it say which
// records follow from what happened.
type machine struct {
	state    State // empty before begin
	input    json.RawMessage
	deadline time.Time
	steps    []progress // in the order in which they were sent
	reason   string     // of the decision to abort
}

// replay is the machine after all records of a saga.
func replay(entries []journal.Entry) (machine, error) { return machine{}.with(entries...) }

// with is the machine after records that follow what it has seen; m stays as it is.
func (m machine) with(entries ...journal.Entry) (machine, error) {
	m.steps = slices.Clone(m.steps)
	for _, e := range entries {
		if err := m.apply(e); err != nil {
			return machine{}, fmt.Errorf("record %s %q in state %q: %w", e.Kind, e.Step, m.state, err)
		}
	}
	return m, nil
}

func (m *machine) apply(e journal.Entry) error {
	if (m.state == "") != (e.Kind == recordBegin) {
		return errOrder
	}
	switch e.Kind {
	case recordBegin:
		return m.begin(e)
	case recordSent:
		return m.send(e)
	case recordDone, recordFailed:
		return m.answer(e)
	case recordDecide:
		return m.decide(e)
	case recordUndone, recordDead:
		return m.back(e)
	case recordRemind:
		if m.state != DeadLetter {
			return errOrder
		}
		return nil
	case recordEnd:
		return m.end()
	}
	return fmt.Errorf("no such kind of record is known here: it was written by a newer version")
}

func (m *machine) begin(e journal.Entry) error {
	var b begun
	if err := json.Unmarshal(e.Data, &b); err != nil {
		return err
	}
	m.state, m.input = Running, b.Input
	if b.Deadline != 0 {
		m.deadline = time.UnixMilli(b.Deadline)
	}
	return nil
}

func (m *machine) send(e journal.Entry) error {
	var s sending
	if err := json.Unmarshal(e.Data, &s); err != nil {
		return err
	}
	switch {
	case m.state != Running && m.state != Completing, !m.quiet():
		return errOrder
	case m.state == Running && (m.passedPivot() || m.broken()):
		return fmt.Errorf("it has to be decided first")
	case slices.ContainsFunc(m.steps, func(p progress) bool { return p.name == e.Step }):
		return fmt.Errorf("it was sent before")
	}
	m.steps = append(m.steps, progress{name: e.Step, undo: s.Undo, pivot: s.Pivot})
	return nil
}

// answer takes what became of the step that is in flight.
func (m *machine) answer(e journal.Entry) error {
	p := m.current()
	if p == nil || p.name != e.Step {
		return errOrder
	}
	if e.Kind == recordDone {
		p.fate, p.output = done, e.Data
		return nil
	}
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	switch {
	case m.state != Running:
		return fmt.Errorf("a step behind the decision to commit is never given up")
	case p.pivot && w.Unknown:
		return fmt.Errorf("a pivot is never given up while it may have been done")
	}
	p.fate, p.err = refused, w.Error
	if w.Unknown {
		p.fate = unknown
	}
	return nil
}

func (m *machine) decide(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	if m.state != Running || !m.quiet() {
		return errOrder
	}
	switch {
	case e.Step == decideCommit && !m.broken():
		m.state = Completing
	case e.Step == decideAbort && !m.passedPivot():
		m.state, m.reason = Undoing, w.Error
	default:
		return errOrder
	}
	return nil
}

// back takes what became of the undo that is next.
func (m *machine) back(e journal.Entry) error {
	p := m.undoing()
	if p == nil || p.name != e.Step {
		return errOrder
	}
	if p.fate = undone; e.Kind == recordDead {
		var w why
		if err := json.Unmarshal(e.Data, &w); err != nil {
			return err
		}
		p.fate, p.err = dead, w.Error
	}
	if m.undoing() == nil && m.has(dead) {
		m.state = DeadLetter
	}
	return nil
}

func (m *machine) end() error {
	switch {
	case m.state == Completing && m.quiet():
		m.state = Succeeded
	case m.state == Undoing && m.undoing() == nil:
		m.state = Compensated
	default:
		return errOrder
	}
	return nil
}

// current is the step in flight.
func (m *machine) current() *progress {
	if n := len(m.steps); n > 0 && m.steps[n-1].fate == inFlight {
		return &m.steps[n-1]
	}
	return nil
}

func (m *machine) quiet() bool { return m.current() == nil }

// undoing is the step whose undo is next: the last sent that may have happened.
func (m *machine) undoing() *progress {
	if m.state != Undoing {
		return nil
	}
	for i := len(m.steps) - 1; i >= 0; i-- {
		if p := &m.steps[i]; p.undo != "" && (p.fate == done || p.fate == unknown) {
			return p
		}
	}
	return nil
}

func (m *machine) has(f fate) bool {
	return slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate == f })
}

// broken reports whether a step was given up.
func (m *machine) broken() bool { return m.has(refused) || m.has(unknown) }

func (m *machine) passedPivot() bool {
	return slices.ContainsFunc(m.steps, func(p progress) bool { return p.pivot && p.fate == done })
}

// phase is what the failure of a call means.
type phase int

const (
	beforePivot phase = iota // it can be undone, or needs no undo
	atPivot                  // it cannot be undone: an unknown outcome has to become known
	afterPivot               // it has to be done
	inUndo
)

// phase is that of the next call.
func (m *machine) phase() phase {
	switch p := m.current(); {
	case m.state == Undoing:
		return inUndo
	case m.state == Completing:
		return afterPivot
	case p != nil && p.pivot:
		return atPivot
	}
	return beforePivot
}

// late reports whether the time of the saga is up while it can still be aborted.
func (m *machine) late(now time.Time) bool {
	return m.state == Running && m.phase() == beforePivot && !m.deadline.IsZero() && !now.Before(m.deadline)
}
