package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// forever is the pause between two turns of a saga with an unbounded wait.
const forever = 24 * time.Hour

// Signal returns a stage that waits for a signal, such as an approval, and outputs its value. The
// name is unique among the steps of the saga. A signal that arrives before its stage is kept.
// [Action.Within] bounds the wait and [Action.Else] sets the value after it; without them it is
// unbounded. A Signal cannot be part of a group. A waiting saga uses no memory.
func Signal[I, O any](name string) Action[I, O] {
	return Action[I, O]{step{name: name, key: name, sleep: true, signal: true}}
}

// Within bounds the wait for a Signal, counted from when its stage begins. Then the stage fails
// without an effect, and the saga is undone. After the pivot that is impossible, so
// [Action.Else] is required. It does not affect other steps.
func (a Action[I, O]) Within(d time.Duration) Action[I, O] {
	if a.s.signal {
		a.s.wait = d
	}
	return a
}

// Else sets the output of a Signal that does not arrive in time; the saga then continues. It does
// not affect other steps.
func (a Action[I, O]) Else(value O) Action[I, O] {
	if text, err := compact(value); err == nil && a.s.signal {
		a.s.absent = text
	}
	return a
}

// Await waits for a Signal in a [DefineFunc] function. It returns when the signal has arrived, or
// when the time is over and there is an Else.
func (a Action[I, O]) Await(s *Run) (output O, err error) {
	if err := s.Join(); err != nil {
		return output, err
	}
	s.stage([]step{a.s})
	return (&Future[O]{s: s, key: a.s.key}).Output()
}

// ErrSignalled means that a signal of this name with another value arrived first. It is Definite.
var ErrSignalled = fmt.Errorf("another signal of that name arrived first")

// SendSignal sends a signal to a saga, whichever process drives it. Value is JSON and becomes the
// output of the stage of that name. SendSignal returns when the signal is durable; the owner
// continues within Options.Poll of its coordinator. The first signal of a name counts. The same
// value again changes nothing; another one is rejected with [ErrSignalled]. If the saga is
// neither RUNNING nor COMPLETING the error is a [*StateError]. After an Uncertain error send it
// again.
func SendSignal(ctx context.Context, j *journal.Journal, id, name string, value json.RawMessage) error {
	const op = "signal"
	if value == nil {
		value = json.RawMessage("null")
	}
	var text bytes.Buffer
	if err := json.Compact(&text, value); err != nil || text.Len() > driver.MaxPayload {
		return bug(op, id, fmt.Errorf("the value is not JSON, or has more than %d bytes", driver.MaxPayload))
	}
	if err := (plan{}).named(name, name); err != nil {
		return bug(op, id, err)
	}
	return NewOperator(j).append(ctx, op, id, name, func(m *machine) ([]journal.Entry, error) {
		if there, is := m.signals[name]; is && bytes.Equal(there, text.Bytes()) {
			return nil, nil
		} else if is {
			return nil, ErrSignalled
		}
		return []journal.Entry{{Kind: recordSignal, Step: name, Data: text.Bytes()}}, nil
	})
}

// Signal is [SendSignal] with a value that is encoded as JSON. If this process drives the saga,
// it continues at once.
func (e *Engine) Signal(ctx context.Context, id, name string, value any) error {
	text, err := compact(value)
	if err != nil {
		return &interlock.Error{Op: "signal", Name: id, Kind: interlock.Bug, Err: err}
	}
	if err := SendSignal(ctx, e.coordinator.Journal(), id, name, text); err != nil {
		return err
	}
	e.coordinator.Nudge(id)
	return nil
}

func (m *machine) applySignal(e journal.Entry) error {
	if _, twice := m.signals[e.Step]; twice || m.state != Running && m.state != Completing {
		return errOrder
	}
	m.signals = maps.Clone(m.signals)
	if m.signals == nil {
		m.signals = map[string]json.RawMessage{}
	}
	m.signals[e.Step] = e.Data
	return nil
}

func (m *machine) applyDelayed(journal.Entry) error {
	if m.state != Running || m.start.IsZero() || len(m.steps) > 0 {
		return errOrder
	}
	return nil
}

// waitForStart leaves the saga until its start time.
func (c *execution) waitForStart(now time.Time) (action, error) {
	switch wait := c.m.start.Sub(now); {
	case c.scheduled.Equal(c.m.start):
		return action{rest: true}, nil
	case wait <= parked:
		return action{wait: c.m.start}, nil
	}
	err := c.note(now, true, journal.Entry{Kind: recordLater})
	return action{write: true, due: c.m.start, rest: true}, err
}
