package saga

import (
	"context"
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Outcome is where a saga stands, and how it has ended once State is final.
type Outcome struct {
	ID       string
	Type     string
	Input    json.RawMessage // as it was started with
	State    State
	Reason   string    // why it is undone, or halted; empty while it is neither
	Halted   bool      // it is a dead letter because owners crashed, and goes on by an Operator's Retry
	Outputs  Outputs   // of the steps that were done, those that were undone too
	Dead     []Dead    // the undos that were given up, in the order of their steps, then the steps that seem to crash
	Skipped  []string  // the steps that an operator has skipped, or whose undos
	Resolved By        // who has closed the dead letter; the zero value if nobody has
	Due      time.Time // when it is looked at next; zero once it has ended
	Ended    time.Time // by the store's clock; zero until it has, and for a dead letter
}

// Dead is an undo that was given up, or a step of a halted saga.
type Dead struct {
	Step string // whose undo it is
	Err  string // of the last call
}

// Err is nil while the saga goes on and when it has succeeded, else an
// [*EndedError].
func (o Outcome) Err() error {
	if o.State.Final() && o.State != Succeeded {
		return &EndedError{o}
	}
	return nil
}

func outcome(head driver.Head, m *machine) Outcome {
	o := Outcome{ID: head.Transaction, Type: nameOf(head.Type), Input: m.input, State: m.state, Reason: m.why(), Halted: m.halted != "", Outputs: m.outputs(), Dead: m.dead(), Due: head.Due, Ended: head.Ended}
	for _, p := range m.steps {
		if p.fate == skipped {
			o.Skipped = append(o.Skipped, p.key)
		}
	}
	if m.resolved != nil {
		o.Resolved = By{m.resolved.Actor, m.resolved.Reason}
	}
	return o
}

// Look reads where a saga stands, whoever drives it. The error is an [ErrNone] if it
// does not exist, or ended so long ago that it was forgotten.
func (e *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	log, m, err := read(ctx, e.coordinator.Journal(), id)
	if err != nil {
		return Outcome{}, err
	}
	return outcome(log.Head(), &m), nil
}

// Wait blocks until a saga has come to its end, whoever drives it, and returns how:
// the error is that of [Outcome.Err]. When ctx ends the saga goes on, and the error
// is Uncertain.
func (e *Engine) Wait(ctx context.Context, id string) (Outcome, error) {
	var o Outcome
	err := e.coordinator.Await(ctx, id, func(ctx context.Context) (ended bool, err error) {
		looked, err := e.Look(ctx, id)
		if err == nil {
			o = looked
		}
		return o.State.Final(), err
	})
	if err != nil {
		return o, err
	}
	return o, o.Err()
}
