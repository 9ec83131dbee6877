package tcc

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Outcome is a decided transaction, and where it stands.
type Outcome struct {
	coordinator.Summary

	holds map[string]json.RawMessage
}

// Err is nil if the transaction is confirmed, or to be, else a [*CancelledError]; of
// a dead letter it is a [*DeadLetterError], whatever was decided.
func (o Outcome) Err() error {
	switch {
	case o.State == DeadLetter:
		return &DeadLetterError{o}
	case o.Decision == Cancel:
		return &CancelledError{ID: o.ID, Reason: o.Reason}
	}
	return nil
}

// outcome of a transaction under its head.
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
