package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// machine is the state that a saga's records lead to. It is pure: with returns the state after more
// records, or an error if they are invalid. An execution decides which records follow from results.
type machine struct {
	state    State // empty before begin
	over     bool  // the saga has an end record
	input    json.RawMessage
	deadline time.Time
	start    time.Time  // of the first call, at the earliest
	notify   bool       // OnEnd is called before the end record
	atEnd    bool       // only the call of OnEnd is left
	steps    []progress // in the order of their sent records
	reason   string     // of the decision to abort
	resolved *note
	signals  map[string]json.RawMessage // received ones, by name

	takeOvers int    // in a row, without an answer in between
	halted    string // the reason why no call is made; empty while it is not halted
	before    State  // of a halted saga: the state to resume
	released  bool   // resumed by the last record
}

// replay returns the state after all records of a saga.
func replay(entries []journal.Entry) (machine, error) { return machine{}.with(entries...) }

// with returns the state after more records. m does not change.
func (m machine) with(entries ...journal.Entry) (machine, error) {
	m.steps = slices.Clone(m.steps)
	if err := m.extend(entries); err != nil {
		return machine{}, err
	}
	return m, nil
}

// extend changes m to the state after more records. After an error m has applied some of them.
func (m *machine) extend(entries []journal.Entry) error {
	for _, e := range entries {
		if err := m.apply(e); err != nil {
			return fmt.Errorf("record %s %q in state %q: %w", e.Kind, e.Step, m.state, err)
		}
	}
	return nil
}

// rules has for each kind of record the function that checks and applies it.
var rules = map[string]func(*machine, journal.Entry) error{
	recordBegin: (*machine).begin, recordSent: (*machine).send, recordNever: (*machine).withdraw,
	recordDone: (*machine).answer, recordFailed: (*machine).answer, recordTried: (*machine).try,
	recordTaken: (*machine).countTakeOver, recordHalted: (*machine).halt,
	recordSignal: (*machine).applySignal, recordCrossed: (*machine).applyCrossed, recordLater: (*machine).applyDelayed, recordFinished: (*machine).finish,
	recordDecide: (*machine).decide, recordUndone: (*machine).answerUndo, recordDead: (*machine).answerUndo,
	recordRemind: (*machine).remind, recordEnd: (*machine).end,
	recordRetry: (*machine).retry, recordSkip: (*machine).skip, recordSettle: (*machine).applyOutcome, recordNow: (*machine).endWait, recordResolved: (*machine).resolve,
}

func (m *machine) apply(e journal.Entry) error {
	if (m.state == "") != (e.Kind == recordBegin) || m.over || m.state == Resolved && !m.atEnd && e.Kind != recordEnd && e.Kind != recordFinished {
		return errOrder
	}
	if m.atEnd && e.Kind != recordEnd && e.Kind != recordTaken && e.Kind != recordTried && e.Kind != recordCrossed {
		return errOrder
	}
	rule := rules[e.Kind]
	if rule == nil {
		return errors.New("unknown kind of record: a newer version wrote it")
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
	m.deadline, m.start = timeOf(b.Deadline), timeOf(b.Start)
	return nil
}

// send applies that a step may be called from now on. Several steps can be sent at once, before the
// earlier ones are done; the pivot cannot.
func (m *machine) send(e journal.Entry) error {
	s, err := decodeSending(e.Data)
	switch {
	case err != nil:
		return err
	case m.state != Running && m.state != Completing, m.find(e.Step) != nil:
		return errOrder
	case m.state == Running && (m.pivot() != nil || m.broken()):
		return errors.New("the decision must come first")
	case s.Pivot && (m.state != Running || !m.quiet()):
		return errors.New("all steps before a pivot must be done before it is sent")
	case m.state == Completing && s.Undo != "":
		return errors.New("after the decision to commit nothing is undone")
	case slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate != inFlight && p.stage > s.Stage }):
		return errors.New("a later step was answered")
	}
	p := progress{key: e.Step, of: s.Of, at: s.At, stage: s.Stage, undo: s.Undo, pivot: s.Pivot, input: s.Input}
	if p.of == "" {
		p.of = p.key
	}
	p.wait, p.signal, p.until = s.Until != 0 || s.For, s.For, timeOf(s.Until)
	m.steps = append(m.steps, p)
	return nil
}

// withdraw applies that a sent step was not called. Before a decision it can be sent again, after a
// decision it is known not to be done.
func (m *machine) withdraw(e journal.Entry) error {
	p := m.find(e.Step)
	switch {
	case p != nil && m.state == Running && p.fate == inFlight && !p.wait:
		m.steps = slices.DeleteFunc(m.steps, func(p progress) bool { return p.key == e.Step })
	case p != nil && m.state == Undoing && p.fate == unknown && p.abortedInFlight:
		p.fate, p.abortedInFlight = refused, false
	default:
		return errOrder
	}
	return nil
}

// answer applies the result of a step in flight, if no earlier stage is in flight.
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
		return errors.New("after the decision to commit no step is given up")
	case p.pivot && w.Unknown:
		return errors.New("a pivot that may have been done is never given up")
	case p.wait && (!p.signal || w.Unknown):
		return errors.New("a wait does not fail")
	}
	p.fate, p.err, p.attempts = refused, w.Error, max(p.attempts, w.Attempts)
	if w.Unknown {
		p.fate = unknown
	}
	return nil
}

// try applies the number of failed attempts, and when the next one is due. Of OnEnd it only shows an answer.
func (m *machine) try(e journal.Entry) error {
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	if m.atEnd && e.Step == "" {
		return nil
	}
	p := m.find(e.Step)
	if p == nil || p.fate != inFlight && !slices.Contains(m.undoing(), p) {
		return errOrder
	}
	p.attempts, p.by, p.calls, p.err, p.next, p.parked = w.Attempts, w.By, w.Calls, w.Error, timeOf(w.Next), w.Parked
	return nil
}

// find returns the sent step of a key, or nil.
func (m *machine) find(key string) *progress {
	for i := range m.steps { // not by IndexFunc, which copies each step
		if m.steps[i].key == key {
			return &m.steps[i]
		}
	}
	return nil
}

func (m *machine) has(f fate) bool {
	return slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate == f })
}

// quiet reports whether nothing is in flight.
func (m *machine) quiet() bool { return !m.has(inFlight) }

// broken reports whether a step was given up.
func (m *machine) broken() bool { return m.has(refused) || m.has(unknown) }

// pivot returns the pivot, if it was sent.
func (m *machine) pivot() *progress {
	i := slices.IndexFunc(m.steps, func(p progress) bool { return p.pivot })
	if i < 0 {
		return nil
	}
	return &m.steps[i]
}

// undoing returns the steps whose undos are next: those of the last stage that has any.
func (m *machine) undoing() (next []*progress) {
	if m.state != Undoing {
		return nil
	}
	for i := range m.steps {
		p := &m.steps[i]
		switch {
		case !p.undoable() || len(next) > 0 && p.stage < next[0].stage:
		case len(next) > 0 && p.stage > next[0].stage:
			next = []*progress{p}
		default:
			next = append(next, p)
		}
	}
	return next
}

// phase determines what the failure of a call means.
type phase int

const (
	beforePivot phase = iota // the step can be undone, or needs no undo
	atPivot                  // the step cannot be undone: calls repeat until the outcome is known
	afterPivot               // the step must be done
	inUndo
)

// phase returns the phase of a call of p now.
func (m *machine) phase(p *progress) phase {
	switch {
	case m.state == Undoing:
		return inUndo
	case m.state == Completing:
		return afterPivot
	case p.pivot:
		return atPivot
	}
	return beforePivot
}

// abortable reports whether the saga could still be aborted without a failure.
func (m *machine) abortable() bool { return m.state == Running && m.pivot() == nil }

// late reports whether the deadline has passed while the saga can be aborted.
func (m *machine) late(now time.Time) bool {
	return m.abortable() && !m.deadline.IsZero() && !now.Before(m.deadline)
}

// inputOf returns the input of a step and its undo.
func (m *machine) inputOf(p *progress) []byte {
	if p.input != nil {
		return p.input
	}
	return m.input
}

// outputs returns the outputs of all steps that were done.
func (m *machine) outputs() Outputs {
	var steps map[string]json.RawMessage
	for _, p := range m.steps {
		if p.output != nil && steps == nil {
			steps = map[string]json.RawMessage{}
		}
		if p.output != nil {
			steps[p.key] = p.output
		}
	}
	return Outputs{steps}
}

// decide applies the only decision. A commit requires that all steps are done. An abort requires that the
// pivot was not done; steps in flight may have been.
func (m *machine) decide(e journal.Entry) error {
	switch pivot := m.pivot(); {
	case m.state != Running: // a saga has one decision
		return errOrder
	case e.Step == decideCommit && m.quiet() && !m.broken():
		m.state = Completing
		return nil
	case e.Step == decideAbort && (pivot == nil || pivot.fate == refused):
		var w why
		err := json.Unmarshal(e.Data, &w)
		m.state, m.reason = Undoing, w.Error
		m.abandon()
		return err
	}
	return errOrder
}

// abandon gives up steps in flight.
func (m *machine) abandon() {
	for i := range m.steps {
		p := &m.steps[i]
		if p.fate == refused { // its error stays
			continue
		}
		switch p.attempts, p.by, p.calls, p.lost, p.next, p.parked = 0, nil, 0, 0, (time.Time{}), false; {
		case p.fate == inFlight && p.wait:
			p.fate = refused
		case p.fate == inFlight:
			p.fate, p.abortedInFlight = unknown, true
		}
	}
}

// answerUndo applies the result of an undo that is next.
func (m *machine) answerUndo(e journal.Entry) error {
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
			p.was, p.fate, p.abortedInFlight, p.err, p.attempts = p.fate, dead, false, w.Error, max(p.attempts, w.Attempts)
		}
		m.settle()
		return nil
	}
	return errOrder
}

// settle makes the saga a dead letter once nothing more can be undone.
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

// finish applies that no call is left except that of OnEnd.
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
