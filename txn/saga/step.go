package saga

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Action is a step of sagas with input I; its output is O. Both are encoded as JSON. An Action
// is a value: its methods return a changed copy.
type Action[I, O any] struct{ s step }

// Stage is a stage of sagas with input I: an [Action] of any output, a [Parallel] group or a
// [Sleep].
type Stage[I any] interface{ of(I) []step }

// step is an action without its types. Input and output are JSON.
type step struct {
	name    string // from its constructor
	key     string // unique in a saga
	branch  string // the Branch of its calls; empty if that is the key
	at      string // its index
	act     func(ctx context.Context, input json.RawMessage) (json.RawMessage, error)
	local   localAction     // instead of act
	input   json.RawMessage // its own; nil if it is the saga's
	undo    string          // empty if there is none
	back    func(ctx context.Context, input, output json.RawMessage) error
	truth   func(ctx context.Context, input, output json.RawMessage) (Effect, error)
	repair  bool
	pivot   bool
	keep    bool // declared to need no undo
	grouped bool
	sleep   bool            // it is a wait
	wait    time.Duration   // of a wait; 0 means without a bound
	signal  bool            // it waits for a signal
	absent  json.RawMessage // the output if no signal arrives in time; nil means that the step fails
	timeout time.Duration   // of a call, since its last heartbeat
	longest time.Duration   // of a call, heartbeats included
	target  string
	policy  Policy
	by      map[branch.Class]Policy
}

// Step returns a step. Its name is unique in the saga, 1 to 255 bytes. The action is called at
// least once, and again after a crash or an unknown outcome. All calls have the same
// branch.Call.Key, and must have one effect and one answer. The action must return when its
// context ends. It classifies its errors by [Fail], [Retry], [Unknown] or [InProgress]. A panic
// counts as Unknown.
func Step[I, O any](name string, action func(ctx context.Context, input I) (O, error)) Action[I, O] {
	s := step{name: name, key: name}
	if action == nil {
		return Action[I, O]{s}
	}
	s.act = func(ctx context.Context, text json.RawMessage) (json.RawMessage, error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return nil, Retry(fmt.Errorf("read the input of step %q: %w", name, err))
		}
		output, err := action(ctx, input)
		if err != nil {
			return nil, err
		}
		return stored(name, output)
	}
	return Action[I, O]{s}
}

// stored returns an output as JSON. If the journal cannot store the output, the error is
// Unknown.
func stored(name string, output any) (json.RawMessage, error) {
	text, err := coordinator.Marshal(output)
	if err == nil && len(text) > driver.MaxPayload {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(text), driver.MaxPayload)
	}
	if err != nil {
		return nil, Unknown(fmt.Errorf("store the output of step %q: %w", name, err))
	}
	return text, nil
}

// Undo sets the compensation of the step. Sagas find it by its name, so neither it nor the step
// may be renamed while sagas that have sent the step are unfinished. It gets the step's output,
// or nil if it is unknown whether the step was done. Then it must remove any effect, and reject
// a call of the action that arrives later. Like the action it is called at least once.
func (a Action[I, O]) Undo(name string, undo func(ctx context.Context, input I, output *O) error) Action[I, O] {
	a.s.undo, a.s.back = name, nil
	if undo == nil {
		return a
	}
	a.s.back = func(ctx context.Context, text, out json.RawMessage) error {
		input, output, err := arguments[I, O](text, out)
		if err != nil {
			return fmt.Errorf("read the arguments of undo %q: %w", name, err)
		}
		return undo(ctx, input, output)
	}
	return a
}

// arguments decodes the arguments of an undo or check; the output is nil if out is.
func arguments[I, O any](text, out json.RawMessage) (input I, output *O, err error) {
	if err = json.Unmarshal(text, &input); err == nil && out != nil {
		output = new(O)
		err = json.Unmarshal(out, output)
	}
	return input, output, err
}

// At returns the step under an index, for rounds of a loop in a [DefineList]. Its key is the
// step's name, '#' and the index. Calls have the index as branch.Call.Step.
func (a Action[I, O]) At(index int) Action[I, O] {
	if a.s.branch == "" {
		a.s.branch = a.s.key
	}
	a.s.at = fmt.Sprint(index)
	a.s.key = a.s.branch + "#" + a.s.at
	return a
}

// Named returns the step under another key, with the same undo.
func (a Action[I, O]) Named(key string) Action[I, O] {
	a.s.key, a.s.branch, a.s.at = key, "", ""
	return a
}

// Output returns the output of the step with this key. ctx is that of an action or undo of a
// later step. If the step was not done the error is an [ErrNoOutput].
func (a Action[I, O]) Output(ctx context.Context) (O, error) { return a.output(From(ctx).Outputs) }

// OutputOf returns the output of the step in a saga with this outcome; see [Action.Output].
func (a Action[I, O]) OutputOf(o Outcome) (O, error) { return a.output(o.Outputs) }

func (a Action[I, O]) output(from Outputs) (output O, err error) {
	text, ok := from.steps[a.s.key]
	if !ok {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.key, ErrNoOutput)
	}
	if err := json.Unmarshal(text, &output); err != nil {
		return output, fmt.Errorf("read the output of step %q: %w", a.s.key, err)
	}
	return output, nil
}

func (a Action[I, O]) of(I) []step { return []step{a.s} }

// Outputs has the outputs of a saga's steps; see [Action.Output].
type Outputs struct{ steps map[string]json.RawMessage }

// Options of a step.

// Uncompensable declares that the step needs no undo although it is before the pivot: it only
// reads, or its effect is harmless.
func (a Action[I, O]) Uncompensable() Action[I, O] { a.s.keep = true; return a }

// Pivot makes the step the last one that may fail. Once it is done the saga can only complete:
// later steps are retried until they are done. A saga has at most one pivot. The pivot has no
// undo, and is retried while its outcome is unknown.
func (a Action[I, O]) Pivot() Action[I, O] { a.s.pivot = true; return a }

// Timeout bounds each call of the action and of the undo; 0 means 30 seconds. [Heartbeat]
// restarts it.
func (a Action[I, O]) Timeout(d time.Duration) Action[I, O] { a.s.timeout = d; return a }

// MaxTime bounds each call in total, heartbeats included; 0 means no bound.
func (a Action[I, O]) MaxTime(d time.Duration) Action[I, O] { a.s.longest = d; return a }

// Target names the system that the step calls. Steps with one target share its limit in the
// coordinator. Empty means the step's name.
func (a Action[I, O]) Target(name string) Action[I, O] { a.s.target = name; return a }

// Retry sets how failed calls are repeated.
func (a Action[I, O]) Retry(p Policy) Action[I, O] { a.s.policy = p; return a }

// RetryOn sets how calls are repeated that fail with errors of one class. They are counted
// separately.
func (a Action[I, O]) RetryOn(c branch.Class, p Policy) Action[I, O] {
	a.s.by = maps.Clone(a.s.by)
	if a.s.by == nil {
		a.s.by = map[branch.Class]Policy{}
	}
	a.s.by[c] = p
	return a
}

// resolved returns the step with defaults.
func (s step) resolved() step {
	s.policy = s.policy.resolve()
	s.by = maps.Clone(s.by)
	for c, p := range s.by {
		s.by[c] = p.resolve()
	}
	if s.timeout <= 0 {
		s.timeout = 30 * time.Second
	}
	if s.longest > 0 {
		s.timeout = min(s.timeout, s.longest)
	}
	if s.target == "" {
		s.target = s.name
	}
	return s
}

// Steps and starts in the same database transaction as their records.

// Appender is a journal in a database that can append in a user's transaction: a
// [*journal.Table].
type Appender = journal.TxStore

// localAction runs a step in a transaction of its own, records its output there by record, and commits
// both.
type localAction func(ctx context.Context, input json.RawMessage, record recordIn) (driver.Append, error)

// recordIn appends within a transaction that a step was done.
type recordIn func(ctx context.Context, table Appender, db driver.SQL, output json.RawMessage) (driver.Append, error)

// local reports whether a sent step commits together with its record. Without the record it was not done,
// because an abort has read the last record.
func (p plan) local(sent *progress) bool {
	s := p.undoOf(sent.undo)
	return sent.undo != "" && s != nil && s.local != nil
}

func (c *call) local() bool { return c.step.local != nil && c.phase != inUndo }

// StepTx returns a step that runs exactly once: in a transaction of db, which has the table of
// the engine's journal. The transaction commits the effects together with the step's record. The
// action must not end the transaction. An error rolls back; Fail aborts the saga, any other error
// is retried. An undo works like that of a [Step]. Do not turn a Step into a StepTx of the same
// name while sagas with it are unfinished: a call without a record would count as never made.
func StepTx[I, O, T any](name string, db driver.Beginner[T], table Appender, action func(ctx context.Context, tx driver.Tx[T], input I) (O, error)) Action[I, O] {
	s := step{name: name, key: name}
	if action == nil || db == nil || table == nil {
		return Action[I, O]{s}
	}
	s.local = func(ctx context.Context, text json.RawMessage, record recordIn) (a driver.Append, err error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return a, Retry(fmt.Errorf("read the input of step %q: %w", name, err))
		}
		written := false
		err = transact.Do(ctx, db.Begin, name, func(tx driver.Tx[T]) error {
			output, err := action(ctx, tx, input)
			if err != nil {
				return err
			}
			text, err := stored(name, output)
			if err != nil {
				return err
			}
			a, err = record(ctx, table, tx, text)
			written = err == nil
			return err
		})
		return a, asConflict(err, written)
	}
	return Action[I, O]{s}
}

// asConflict turns an error after which the journal must be read again into a [journal.ErrConflict].
func asConflict(err error, written bool) error {
	var elsewhere *driver.PositionError
	if errors.As(err, &elsewhere) || written && interlock.Kind(err) == interlock.Uncertain {
		return fmt.Errorf("%w: %w", journal.ErrConflict, err)
	}
	return err
}

// runLocal runs a step that commits together with its record. Pending records are written with it.
func (d *drive) runLocal(ctx context.Context, c *call, input []byte) error {
	var after machine
	a, err := c.step.local(ctx, input, func(ctx context.Context, table Appender, db driver.SQL, output json.RawMessage) (a driver.Append, err error) {
		done := journal.Entry{Kind: recordDone, Step: c.p.key, Data: output}
		if after, err = d.m.with(done); err != nil {
			return a, bug("drive saga", d.ID(), err)
		}
		due := d.Now().Add(parked)
		return d.Log().AppendIn(ctx, table, db, due, d.appendPending(done)...)
	})
	if err != nil {
		return err
	}
	d.m = after
	d.flushed()
	return d.Write(func(context.Context) error {
		d.Log().Accept(a)
		return nil
	})
}

// StartTx is [Definition.Start] in a transaction of the user, on the database that has the
// table of the engine's journal. The saga begins if and when the transaction commits. Its owner
// finds it within Options.Poll of the coordinator; [coordinator.Coordinator.Nudge] after the
// commit makes that immediate. Roll the transaction back after an error. StartTx needs no other
// connection, whether or not the saga exists and however large the input is.
func (d Definition[I]) StartTx(ctx context.Context, e *Engine, table Appender, tx driver.SQL, id string, input I) error {
	p, text, err := e.known(d.plan.key(), id, input)
	if err != nil {
		return err
	}
	now := e.coordinator.Now()
	c, err := p.opening(id, text, now, time.Time{})
	if err != nil {
		return err
	}
	err = e.coordinator.Journal().BeginIn(ctx, table, tx, id, protocol+":"+p.key(), now, c.opened()...)
	if errors.Is(err, journal.ErrExists) {
		return attachIn(ctx, e.coordinator.Journal(), table, tx, p.key(), id, text)
	}
	return err
}

// attachIn is attach within a transaction of the user.
func attachIn(ctx context.Context, j *journal.Journal, table Appender, tx driver.SQL, definition, id string, input []byte) error {
	head, first, err := j.FirstIn(ctx, table, tx, id)
	if err != nil {
		return err
	}
	m, err := replay([]journal.Entry{first})
	if err != nil {
		return bug("read saga", id, err)
	}
	return mismatch(head, &m, definition, input)
}

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
