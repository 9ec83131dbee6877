package tcc

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/driver"
)

// Outcome is a decided transaction, and where it stands.
type Outcome struct {
	ID       string
	Type     string
	Decision Decision
	State    State
	Reason   string   // why it is cancelled; empty if it is confirmed
	Skipped  []string // the branches that a person has skipped, in their order
	Dead     []Dead   // the branches that have refused what was decided, or are left of what is halted, in their order
	Halted   string   // why nothing is called any more: owners crash; empty while it goes on
	Failing  []Dead   // the branches that are called again and again, with their last error as far as the journal has it

	holds map[string]json.RawMessage
}

// Dead is a branch that has not done what was decided.
type Dead struct {
	Branch   string
	Err      string // of the last call
	Attempts int    // that failed
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
	o := Outcome{ID: head.Transaction, Type: name(head.Type), Decision: m.decision, State: m.state(), Reason: m.reason, Halted: m.halted,
		holds: map[string]json.RawMessage{}}
	for _, b := range m.members {
		if b.hold != nil {
			o.holds[b.name] = b.hold
		}
		switch b.fate {
		case dead:
			o.Dead = append(o.Dead, Dead{b.name, b.err, b.attempts})
		case pending:
			if m.halted != "" {
				o.Dead = append(o.Dead, Dead{b.name, m.halted, b.attempts})
			} else if b.err != "" {
				o.Failing = append(o.Failing, Dead{b.name, b.err, b.attempts})
			}
		case skipped:
			o.Skipped = append(o.Skipped, b.name)
		}
	}
	return o
}
