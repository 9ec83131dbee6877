package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// machine is a saga as its records tell it. It is pure: with says what is so after
// more records, or that they cannot follow; an execution says which records follow from
// what happened.
type machine struct {
	state    State // empty before begin
	over     bool  // it has an end
	input    json.RawMessage
	deadline time.Time
	start    time.Time  // nothing is called before
	notify   bool       // its end is to be reported before it has ended
	atEnd    bool       // all is settled but that
	steps    []progress // in the order in which they were sent
	reason   string     // of the decision to abort
	resolved *note
	signals  map[string]json.RawMessage // that have come, by their names

	takeOvers int    // in a row, without an answer in between
	halted    string // why nothing is called any more; empty while it goes on
	before    State  // of a halted saga: where it goes on
	released  bool   // by the last record
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

// rules say for each kind of record whether it can follow, and what is so then.
var rules = map[string]func(*machine, journal.Entry) error{
	recordBegin: (*machine).begin, recordSent: (*machine).send, recordNever: (*machine).withdraw,
	recordDone: (*machine).answer, recordFailed: (*machine).answer, recordTried: (*machine).try,
	recordTaken: (*machine).taken, recordHalted: (*machine).halt,
	recordSignal: (*machine).signal, recordCrossed: (*machine).cross, recordLater: (*machine).later, recordFinished: (*machine).finish,
	recordDecide: (*machine).decide, recordUndone: (*machine).back, recordDead: (*machine).back,
	recordRemind: (*machine).remind, recordEnd: (*machine).end,
	recordRetry: (*machine).retry, recordSkip: (*machine).skip, recordSettle: (*machine).learn, recordNow: (*machine).hurry, recordResolved: (*machine).resolve,
}

func (m *machine) apply(e journal.Entry) error {
	if (m.state == "") != (e.Kind == recordBegin) || m.over || m.state == Resolved && !m.atEnd && e.Kind != recordEnd && e.Kind != recordFinished {
		return errOrder
	}
	if m.atEnd && e.Kind != recordEnd && e.Kind != recordTaken && e.Kind != recordCrossed {
		return errOrder
	}
	rule := rules[e.Kind]
	if rule == nil {
		return errors.New("no such kind of record is known here: it was written by a newer version")
	}
	if err := m.release(e); err != nil {
		return err
	}
	if e.Kind != recordTaken && e.Kind != recordHalted && e.Kind != recordCrossed {
		m.takeOvers = 0
	}
	return rule(m, e)
}

func (m *machine) begin(e journal.Entry) error {
	var b begun
	if err := json.Unmarshal(e.Data, &b); err != nil {
		return err
	}
	m.state, m.input = Running, b.Input
	m.notify = b.Notify
	for at, of := range map[*time.Time]int64{&m.deadline: b.Deadline, &m.start: b.Start} {
		if of != 0 {
			*at = time.UnixMilli(of)
		}
	}
	return nil
}

// send takes that a step may be called from now on. Several can be sent at once,
// ahead of those before them; the pivot not.
func (m *machine) send(e journal.Entry) error {
	var s sending
	if err := json.Unmarshal(e.Data, &s); err != nil {
		return err
	}
	switch {
	case m.state != Running && m.state != Completing, m.find(e.Step) != nil:
		return errOrder
	case m.state == Running && (m.pivot() != nil || m.broken()):
		return errors.New("it has to be decided first")
	case s.Pivot && (m.state != Running || !m.quiet()):
		return errors.New("all before a pivot are done before it is sent")
	case m.state == Completing && s.Undo != "":
		return errors.New("behind the decision to commit nothing is undone")
	case slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate != inFlight && p.stage > s.Stage }):
		return errors.New("what comes behind it was answered")
	}
	p := progress{key: e.Step, of: s.Of, at: s.At, stage: s.Stage, undo: s.Undo, pivot: s.Pivot, input: s.Input}
	if p.of == "" {
		p.of = p.key
	}
	if p.wait, p.signal = s.Until != 0 || s.For, s.For; s.Until != 0 {
		p.until = time.UnixMilli(s.Until)
	}
	m.steps = append(m.steps, p)
	return nil
}

// withdraw takes that a step was sent and not called: before a decision it can be
// sent again, after it it has not happened.
func (m *machine) withdraw(e journal.Entry) error {
	p := m.find(e.Step)
	switch {
	case p != nil && m.state == Running && p.fate == inFlight && !p.wait:
		m.steps = slices.DeleteFunc(m.steps, func(p progress) bool { return p.key == e.Step })
	case p != nil && m.state == Undoing && p.fate == unknown && p.adrift:
		p.fate, p.adrift = refused, false
	default:
		return errOrder
	}
	return nil
}

// answer takes the outcome of a step in flight, if none that comes before it is in
// flight still.
func (m *machine) answer(e journal.Entry) error {
	p := m.find(e.Step)
	if p == nil || p.fate != inFlight || m.state != Running && m.state != Completing ||
		slices.ContainsFunc(m.steps, func(q progress) bool { return q.fate == inFlight && q.stage < p.stage }) {
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
		return errors.New("a step behind the decision to commit is never given up")
	case p.pivot && w.Unknown:
		return errors.New("a pivot is never given up while it may have been done")
	case p.wait && (!p.signal || w.Unknown):
		return errors.New("a wait does not fail")
	}
	p.fate, p.err, p.attempts = refused, w.Error, max(p.attempts, w.Attempts)
	if w.Unknown {
		p.fate = unknown
	}
	return nil
}

// try takes how often something was tried by now, and when it is tried again.
func (m *machine) try(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	p := m.find(e.Step)
	if p == nil || p.fate != inFlight && !slices.Contains(m.undoing(), p) {
		return errOrder
	}
	p.attempts, p.by, p.calls, p.err, p.next, p.parked = w.Attempts, w.By, w.Calls, w.Error, time.Time{}, w.Parked
	if w.Next != 0 {
		p.next = time.UnixMilli(w.Next)
	}
	return nil
}
