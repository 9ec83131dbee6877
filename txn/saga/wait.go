package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// Outcome is where a saga stands, and how it has ended once State is final.
type Outcome struct {
	coordinator.Summary
	Input   json.RawMessage // as it was started with
	Outputs Outputs         // of the steps that were done, those that were undone too
	Crossed []StepError     // the steps that were done, or may have been, with an input from before an operator's edit
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
	o := Outcome{Summary: coordinator.SummaryOf(head), Input: m.input, Outputs: m.outputs()}
	o.State, o.Reason, o.Halted, o.Dead = m.state, m.why(), m.halted, m.dead()
	undoing := m.undoing()
	for i, p := range m.steps {
		if p.crossed != "" {
			o.Crossed = append(o.Crossed, StepError{Step: p.key, Err: p.crossed})
		}
		switch {
		case p.fate == skipped:
			o.Skipped = append(o.Skipped, p.key)
		case p.err != "" && (p.fate == inFlight && m.halted == "" || p.attempts > 0 && slices.Contains(undoing, &m.steps[i])):
			o.Failing = append(o.Failing, StepError{Step: p.key, Err: p.err, Attempts: p.attempts})
		}
	}
	if m.resolved != nil {
		o.Resolved = m.resolved.By
	}
	return o
}

// Look reads the state of a saga, whichever process drives it. The error is an [ErrNone] if it
// does not exist, or ended so long ago that it was forgotten.
func (e *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	return records.Look(ctx, e.coordinator.Journal(), "look at saga", id)
}

// Wait blocks until a saga has ended, whichever process drives it, and returns how:
// the error is that of [Outcome.Err]. If the saga is driven here, and cannot be since its
// definition does not fit, the error is its [*MismatchError], at once. When ctx ends the
// saga goes on, and the error is Uncertain; it says why if this engine's definition does
// not fit, or there is none.
func (e *Engine) Wait(ctx context.Context, id string) (Outcome, error) {
	w := e.coordinator.Watch(id)
	defer w.Stop()
	return e.wait(ctx, w, id)
}

// wait reads the journal only if the saga has not ended in this process.
func (e *Engine) wait(ctx context.Context, w *coordinator.Waiter, id string) (Outcome, error) {
	var o Outcome
	err := w.Wait(ctx, func(ctx context.Context, left any) (ended bool, err error) {
		if end, ok := left.(concluded); ok {
			o = outcome(end.head, &end.state)
			return true, nil
		}
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
