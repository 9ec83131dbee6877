package tcc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Decision is the outcome for all branches of a transaction.
type Decision = coordinator.Decision

// The decisions. A transaction has one, and it never changes.
const (
	Confirm Decision = "confirm"
	Cancel  Decision = "cancel"
)

// State is the state of a transaction; see [coordinator.State]. A transaction of [Engine.Run] has
// none before its decision, because it is not in the journal.
type State = coordinator.State

// The states. TRYING, of a transaction of [Engine.Submit], changes to CONFIRMING or CANCELLING.
// CONFIRMING changes to CONFIRMED and CANCELLING to CANCELLED, perhaps after DEAD_LETTER, which
// an operator can also end as RESOLVED.
const (
	Trying     State = "TRYING"               // undecided
	Confirming State = "CONFIRMING"           // decided; not all branches are confirmed
	Confirmed  State = "CONFIRMED"            // all branches are confirmed, or skipped by an operator
	Cancelling State = "CANCELLING"           // decided; not all branches are cancelled
	Cancelled  State = "CANCELLED"            // no branch holds anything
	DeadLetter       = coordinator.DeadLetter // a branch refuses the decision, or too many owners crashed: an operator must act
	Resolved         = coordinator.Resolved   // ended by an operator as it was
)

// States are all states of a transaction.
var States = []State{Trying, Confirming, Cancelling, DeadLetter, Confirmed, Cancelled, Resolved}

// fate is the state of a branch.
type fate int

const (
	pending fate = iota // to be confirmed or cancelled
	refused             // its try had no effect
	settled             // confirmed or cancelled, as decided
	dead                // it refused to be confirmed or cancelled
	skipped             // settled by an operator
)

// member is a branch in the journal.
type member struct {
	name, resource string
	request, hold  json.RawMessage // hold is nil if it is unknown
	fate           fate
	err            string // of the last failed call in the journal
	attempts       int    // failed ones in the journal
}

// machine is the state of a transaction after its records. It is pure: with returns the state after
// more records, or an error if they are invalid.
type machine struct {
	opened   bool      // by Submit
	until    time.Time // of Submit: when the owner of the shard may cancel it
	decision Decision  // empty if there is none
	members  []member  // in the user's order
	reason   string    // of the decision to cancel
	by       *By       // the operator who resolved it; nil if it is not resolved
	ended    bool

	takeOvers int    // in a row, without an answer in between
	halted    string // why no branch is called; empty while it is not halted
}

// replay returns the state after all records of a transaction.
func replay(entries []journal.Entry) (machine, error) { return machine{}.with(entries...) }

// with returns the state after more records. m does not change.
func (m machine) with(entries ...journal.Entry) (machine, error) {
	m.members = slices.Clone(m.members)
	for _, e := range entries {
		if err := m.apply(e); err != nil {
			return machine{}, fmt.Errorf("record %s %q in state %q: %w", e.Kind, e.Step, m.state(), err)
		}
	}
	return m, nil
}

// state returns the state; it is empty before the decision of a Run.
func (m *machine) state() State {
	switch {
	case m.decision == "" && m.opened:
		return Trying
	case m.decision == "":
		return ""
	case m.by != nil:
		return Resolved
	case m.ended && m.decision == Confirm:
		return Confirmed
	case m.ended:
		return Cancelled
	case m.has(dead) && !m.has(pending), m.halted != "":
		return DeadLetter
	case m.decision == Confirm:
		return Confirming
	}
	return Cancelling
}

func (m *machine) apply(e journal.Entry) error {
	before := slices.Contains([]string{recordOpen, recordTried, recordHeld, recordDecide}, e.Kind)
	if m.ended || before != (m.decision == "") {
		return errOrder
	}
	if m.halted != "" && slices.Contains([]string{recordDone, recordUndone, recordDead, recordFailing, recordTaken, recordHalted}, e.Kind) {
		return errOrder
	}
	if e.Kind != recordTaken && e.Kind != recordHalted {
		m.takeOvers = 0
	}
	switch e.Kind {
	case recordTaken, recordHalted, recordFailing:
		return m.recordFailure(e)
	case recordOpen:
		return m.open(e)
	case recordTried:
		return m.try(e)
	case recordHeld:
		return m.held(e)
	case recordDecide:
		return m.decide(e)
	case recordDone, recordUndone, recordDead:
		return m.answer(e)
	case recordRemind:
		if m.state() != DeadLetter {
			return errOrder
		}
		return nil
	case recordRetry, recordSkip, recordResolved:
		return m.applyOperator(e)
	case recordEnd:
		if m.by == nil && (m.has(pending) || m.has(dead)) {
			return errOrder
		}
		m.ended = true
		return nil
	}
	return coordinator.ErrRecord
}

func (m *machine) try(e journal.Entry) error {
	var t trying
	if err := json.Unmarshal(e.Data, &t); err != nil {
		return err
	}
	if m.find(e.Step) != nil {
		return errors.New("it was tried before")
	}
	fate := pending
	if t.Refused {
		fate = refused
	}
	m.members = append(m.members, member{name: e.Step, resource: t.Resource, request: t.Request, hold: t.Hold, fate: fate})
	return nil
}

func (m *machine) decide(e journal.Entry) error {
	var d deciding
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return err
	}
	open := slices.ContainsFunc(m.members, func(b member) bool { return b.fate == refused || b.hold == nil })
	if e.Step != string(Cancel) && (e.Step != string(Confirm) || open || len(m.members) == 0) {
		return errOrder
	}
	m.decision, m.reason = Decision(e.Step), d.Reason
	return nil
}

// answer applies the result of a branch.
func (m *machine) answer(e journal.Entry) error {
	b := m.find(e.Step)
	if b == nil || b.fate != pending || e.Kind == recordDone && m.decision != Confirm || e.Kind == recordUndone && m.decision != Cancel {
		return errOrder
	}
	if e.Kind != recordDead {
		b.fate = settled
		return nil
	}
	var w why
	if err := json.Unmarshal(e.Data, &w); err != nil {
		return err
	}
	b.fate, b.err, b.attempts = dead, w.Error, max(b.attempts, w.Attempts)
	return nil
}

// applyOperator applies the record of an operator.
func (m *machine) applyOperator(e journal.Entry) error {
	b := m.find(e.Step)
	switch {
	case m.by != nil:
		return errOrder
	case e.Kind == recordResolved && e.Step == "" && m.state() == DeadLetter:
		m.by = new(By)
		return json.Unmarshal(e.Data, m.by)
	case e.Kind == recordSkip && b != nil && (b.fate == dead || b.fate == pending):
		b.fate, m.halted = skipped, ""
	case e.Kind == recordRetry && e.Step == "":
		m.halted = ""
		for i := range m.members {
			m.members[i].revive()
		}
	case e.Kind == recordRetry && b != nil && (b.fate == dead || b.fate == pending):
		m.halted = ""
		b.revive()
	default:
		return errOrder
	}
	return nil
}

// revive makes a dead branch callable again.
func (b *member) revive() {
	if b.fate == dead {
		b.fate, b.err, b.attempts = pending, "", 0
	}
}

func (m *machine) find(name string) *member {
	if i := slices.IndexFunc(m.members, func(b member) bool { return b.name == name }); i >= 0 {
		return &m.members[i]
	}
	return nil
}

func (m *machine) has(f fate) bool {
	return slices.ContainsFunc(m.members, func(b member) bool { return b.fate == f })
}

// decisionFor returns the decision for a branch. A branch that is not part of a confirmed transaction
// is cancelled.
func (m *machine) decisionFor(branch string) Decision {
	if m.decision == Confirm && m.find(branch) != nil {
		return Confirm
	}
	return Cancel
}

// Policy sets when calls are repeated; the zero value works. A branch.InProgress does not count as
// a failure, and has its own time of the next call.
type Policy struct {
	// First bounds the first wait. The bound doubles with each wait, and the wait is random
	// below it. 0 means 50 milliseconds.
	First time.Duration
	// Max bounds every wait; 0 means a minute.
	Max time.Duration
	// Attempts bounds the tries of a branch before the transaction is cancelled; 0 means 5.
	// The time of its holds bounds them as well.
	Attempts int
	// Refusals is the number of refusals, by branch.Fail, of a confirmation or cancellation
	// after which the branch is dead; 0 means 5. After other failures the call is repeated
	// without a bound.
	Refusals int
}

func (p Policy) resolve() Policy {
	p.First = cmp.Or(max(p.First, 0), 50*time.Millisecond)
	p.Max = cmp.Or(max(p.Max, 0), time.Minute)
	p.Attempts = cmp.Or(max(p.Attempts, 0), 5)
	p.Refusals = cmp.Or(max(p.Refusals, 0), 5)
	return p
}

// verdict is the action after a failed call.
type verdict int

const (
	again      verdict = iota
	notHeld            // no more tries; none had an effect
	perhapsNot         // no more tries; one may have had an effect
	markDead           // the branch is dead
)

// tryAttempts counts the tries of one branch by one Run. It is pure.
type tryAttempts struct {
	attempts int  // failed ones
	mayHold  bool // one of them may have had an effect
}

// judge counts a failed try. A refusal after a try that may have had an effect does not show that none
// had.
func (t *tryAttempts) judge(p Policy, c branch.Class) verdict {
	was := t.mayHold
	t.mayHold = t.mayHold || c == branch.ClassUnknown || c == branch.ClassInProgress
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
		return t.giveUp()
	}
	return again
}

// giveUp returns the verdict if no more tries are made.
func (t *tryAttempts) giveUp() verdict {
	if t.mayHold {
		return perhapsNot
	}
	return notHeld
}

// settleAttempts counts the confirmations or cancellations of one branch by one owner. It is pure.
type settleAttempts struct {
	attempts int // failed ones
	refusals int
}

// judge counts a failed call. The call is repeated until it succeeds or was refused too often.
func (s *settleAttempts) judge(p Policy, c branch.Class) verdict {
	if c != branch.ClassInProgress {
		s.attempts++
	}
	if c == branch.ClassFail {
		s.refusals++
	}
	if s.refusals >= p.Refusals {
		return markDead
	}
	return again
}

// Kinds of records. A transaction of Run begins with its tried branches and the decision, in one
// append. A transaction of Submit begins with an open record and its requests; the append of the
// decision has the holds.
const (
	recordOpen     = "open"     // by Submit: the run has begun; it decides until a time
	recordTried    = "tried"    // a branch: its request and hold
	recordHeld     = "held"     // after open: the outcome of the try of a branch
	recordDecide   = "decide"   // Step is confirm or cancel; one, ever
	recordDone     = "done"     // the branch is confirmed
	recordUndone   = "undone"   // the branch is cancelled
	recordDead     = "dead"     // the branch has refused the decision
	recordFailing  = "failing"  // the number of failed calls of the branch, which are repeated
	recordTaken    = "taken"    // it was taken over while branches were called
	recordHalted   = "halted"   // it was taken over too often: an operator must act
	recordRemind   = "remind"   // a dead letter was reported again
	recordRetry    = "retry"    // by an operator: Step, or all dead branches, are called again
	recordSkip     = "skip"     // by an operator: Step is not called again
	recordResolved = "resolved" // by an operator: it has ended without further calls
	recordEnd      = coordinator.RecordEnd
)

// trying is the data of a tried record.
type trying struct {
	Resource string          `json:"resource"`
	Request  json.RawMessage `json:"request"`
	Hold     json.RawMessage `json:"hold,omitempty"`    // absent if it is unknown
	Refused  bool            `json:"refused,omitempty"` // it has no hold to cancel
}

// deciding is the data of a decide record.
type deciding struct {
	Reason string `json:"reason,omitempty"`
}

// why is the data of dead, failing and halted records.
type why struct {
	Error    string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

// decided returns the records of the first append of a transaction of Run.
func decided(d Decision, reason string, tries []try) []journal.Entry {
	var entries []journal.Entry
	for _, t := range tries {
		entries = append(entries, record(recordTried, t.branch, trying{Resource: t.resource, Request: t.request, Hold: t.hold, Refused: t.refused}))
	}
	return append(entries, record(recordDecide, string(d), deciding{Reason: reason}))
}

// records reads and changes transactions in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: protocol, With: machine.with,
	State:   func(m machine) State { return m.state() },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return t.State.outcome(t.Head) }}

func truncated(err error) string { return coordinator.Truncate(err.Error(), coordinator.MaxReason) }

// Outcome is the state of a decided transaction.
type Outcome struct {
	coordinator.Summary

	holds map[string]json.RawMessage
}

// Err returns nil if the decision is to confirm, and a [*CancelledError] if it is to cancel. For a
// dead letter it returns a [*DeadLetterError].
func (o Outcome) Err() error {
	switch {
	case o.State == DeadLetter:
		return &DeadLetterError{o}
	case o.Decision == Cancel:
		return &CancelledError{ID: o.ID, Reason: o.Reason}
	}
	return nil
}

// outcome returns the outcome of a transaction with its head.
func (m *machine) outcome(head driver.Head) Outcome {
	o := Outcome{Summary: coordinator.SummaryOf(head), holds: map[string]json.RawMessage{}}
	o.Decision, o.State, o.Reason, o.Halted = m.decision, m.state(), m.reason, m.halted
	for _, b := range m.members {
		if b.hold != nil {
			o.holds[b.name] = b.hold
		}
		switch {
		case b.fate == dead:
			o.Dead = append(o.Dead, StepError{Step: b.name, Err: b.err, Attempts: b.attempts})
		case b.fate == pending && m.halted != "":
			o.Dead = append(o.Dead, StepError{Step: b.name, Err: m.halted, Attempts: b.attempts})
		case b.fate == pending && b.err != "":
			o.Failing = append(o.Failing, StepError{Step: b.name, Err: b.err, Attempts: b.attempts})
		case b.fate == skipped:
			o.Skipped = append(o.Skipped, b.name)
		}
	}
	if m.by != nil {
		o.Resolved = *m.by
	}
	return o
}
