package tcc

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

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
