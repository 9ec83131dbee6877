package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Outcome is where a saga stands, and how it has ended once State is final.
type Outcome struct {
	ID       string
	Type     string
	Input    json.RawMessage // as it was started with
	State    State
	Reason   string    // why it is undone, or halted; empty while it is neither
	Halted   bool      // it is a dead letter because owners crashed, and continues after an Operator's Retry
	Outputs  Outputs   // of the steps that were done, those that were undone too
	Dead     []Dead    // the undos that were given up, in the order of their steps, then the steps that seem to crash
	Failing  []Failing // the steps, and undos, that are called again and again, as far as the journal has it
	Crossed  []Crossed // the steps that were done, or may have been, with an input from before an operator's edit
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

// Failing is a step, or an undo, whose calls fail and are repeated.
type Failing struct {
	Step     string
	Err      string // of the last call that the journal has
	Attempts int    // that failed by then
}

// Crossed is a step whose input an operator has edited, while a call with the one before
// was done.
type Crossed struct {
	Step string
	Err  string // says with which input
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
	undoing := m.undoing()
	for i, p := range m.steps {
		if p.crossed != "" {
			o.Crossed = append(o.Crossed, Crossed{p.key, p.crossed})
		}
		switch {
		case p.fate == skipped:
			o.Skipped = append(o.Skipped, p.key)
		case p.err != "" && (p.fate == inFlight && m.halted == "" || p.attempts > 0 && slices.Contains(undoing, &m.steps[i])):
			o.Failing = append(o.Failing, Failing{p.key, p.err, p.attempts})
		}
	}
	if m.resolved != nil {
		o.Resolved = By{m.resolved.Actor, m.resolved.Reason}
	}
	return o
}

// Look reads the state of a saga, whichever process drives it. The error is an [ErrNone] if it
// does not exist, or ended so long ago that it was forgotten.
func (e *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	log, m, err := read(ctx, e.coordinator.Journal(), id)
	if err != nil {
		return Outcome{}, err
	}
	return outcome(log.Head(), &m), nil
}

// Wait blocks until a saga has ended, whichever process drives it, and returns how:
// the error is that of [Outcome.Err]. If the saga is driven here, and cannot be since its
// definition does not fit, the error is its [*MismatchError], at once. When ctx ends the
// saga goes on, and the error is Uncertain; it says why if this engine's definition does
// not fit, or there is none.
func (e *Engine) Wait(ctx context.Context, id string) (Outcome, error) {
	var o Outcome
	err := e.coordinator.Await(ctx, id, func(ctx context.Context) (ended bool, err error) {
		looked, err := e.Look(ctx, id)
		if err != nil {
			return o.State.Final(), err
		}
		if o = looked; !o.State.Final() {
			err = e.misfit(id)
		}
		return o.State.Final(), err
	})
	var reason *MismatchError
	switch {
	case err == nil:
		return o, o.Err()
	case interlock.Kind(err) != interlock.Uncertain || o.ID == "" || errors.As(err, &reason):
		return o, err
	}
	if _, known := e.plans[o.Type]; !known {
		return o, &interlock.Error{Op: "wait for saga", Name: id, Kind: interlock.Uncertain,
			Err: errors.Join(err, fmt.Errorf("this engine was built without its definition %q: another process has to drive it", o.Type))}
	}
	return o, err
}

// misfit is why a saga cannot be driven here; nil if it can, as far as is known.
func (e *Engine) misfit(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m := e.misfits[id]; m != nil {
		return m
	}
	return nil
}

// mostMisfits bounds how many are remembered.
const mostMisfits = 10_000

// fitted remembers whether the saga's definition fits, by what driving it came to.
func (e *Engine) fitted(id string, err error) {
	var m *MismatchError
	is := errors.As(err, &m) && !errors.Is(err, coordinator.ErrForeign)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !is:
		delete(e.misfits, id)
	case len(e.misfits) < mostMisfits:
		e.misfits[id] = m
	}
}
