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

// Sleep returns a stage that waits for d. A saga that waits for long is not in memory. The
// name is unique among the steps of the saga. The time counts from the start of the stage, by
// the coordinator's clock. The saga's own timeout continues, and can abort a wait before the
// pivot.
func Sleep[I any](name string, d time.Duration) Stage[I] {
	return Action[I, any]{step{name: name, key: name, sleep: true, wait: d}}
}

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
	if a.s.signal {
		a.s.absent, a.s.invalid = stored(a.s.name, value)
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

// maxSignals and maxSignalBytes bound the signals of a saga, because each turn reads all of them.
const (
	maxSignals     = 1000
	maxSignalBytes = 16 << 20
)

// SendSignal sends a signal to a saga, whichever process drives it. Value is JSON and becomes the
// output of the stage of that name. SendSignal returns when the signal is durable; the owner
// continues within Options.Poll of its coordinator. The first signal of a name counts. The same
// value again changes nothing; another one is rejected with [ErrSignalled]. If the saga has
// received 1,000 signals or 16 MiB of them, or is neither RUNNING nor COMPLETING, the error is a [*StateError].
// After an Uncertain error send it again.
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
		if signal, received := m.signals[name]; received && bytes.Equal(signal, text.Bytes()) {
			return nil, nil
		} else if received {
			return nil, ErrSignalled
		}
		size := text.Len()
		for _, signal := range m.signals {
			size += len(signal)
		}
		if len(m.signals) >= maxSignals || size > maxSignalBytes {
			return nil, fmt.Errorf("it has received %d signals; a saga takes %d, with at most %d bytes in total", len(m.signals), maxSignals, maxSignalBytes)
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
func (c *execution) waitForStart(now time.Time) action {
	switch wait := c.m.start.Sub(now); {
	case c.scheduled.Equal(c.m.start):
		return action{rest: true}
	case wait <= parked:
		return action{wait: c.m.start}
	}
	c.note(now, true, journal.Entry{Kind: recordLater})
	return action{write: true, due: c.m.start, rest: true}
}

// forever is the pause between two turns of a saga with an unbounded wait.
const forever = 24 * time.Hour

// sleep waits for the end of a wait, which is recorded before it begins.
func (c *execution) sleep(now time.Time, st stage) (action, error) {
	s := &st.steps[0]
	p := c.m.find(s.key)
	if p == nil {
		var until time.Time
		if s.wait > 0 {
			until = now.Add(s.wait)
		}
		c.note(now, true, record(recordSent, s.key, sending{Stage: st.n, Until: millis(until), For: s.signal}))
		p = c.m.find(s.key)
	}
	until := p.until
	if p.signal && until.IsZero() {
		if until = now.Add(forever); c.scheduled.After(now) {
			until = c.scheduled
		}
	}
	output, received := c.m.signals[s.key]
	ended := journal.Entry{Kind: recordDone, Step: s.key, Data: output}
	switch {
	case received && p.signal:
	case now.Before(until) && !p.over:
		return c.pause(now, until, []*progress{p}), nil
	case p.signal && s.absent != nil:
		ended.Data = s.absent
	case p.signal && c.m.state == Running:
		ended = record(recordFailed, s.key, why{Error: fmt.Sprintf("no signal %q came in time", s.key)})
	default: // also if an operator has ended a wait after the pivot that has no end
		ended.Data = []byte("null")
	}
	c.note(now, true, ended)
	return c.next(now)
}
