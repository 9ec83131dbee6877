package saga

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Options of an engine; nil and the zero value work.
type Options struct {
	// Remind is how often the hook Dead is called for a dead letter; 0 means a day.
	Remind time.Duration
	// Stuck is the number of failed attempts between calls of the hook Stuck, for a step that
	// is repeated without a bound; 0 means 20.
	Stuck int
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Saga
}

func (o *Options) resolve() Options {
	r := *cmp.Or(o, &Options{})
	r.Remind = cmp.Or(max(r.Remind, 0), 24*time.Hour)
	r.Stuck = cmp.Or(max(r.Stuck, 0), 20)
	r.Hooks = r.Hooks.WithDefaults()
	return r
}

// protocol is the part of transaction types before the colon.
const protocol = "saga"

// An Engine has the definitions of sagas and decides their next actions; its coordinator executes
// them. It is safe for concurrent use.
type Engine struct {
	coordinator *coordinator.Coordinator
	options     Options
	plans       map[string]plan
}

// New returns an engine on a coordinator that does not serve yet. A coordinator has at most one
// engine of sagas. Each problem of a definition is reported as a [*DefinitionError].
func New(c *coordinator.Coordinator, o *Options, definitions ...Defined) (*Engine, error) {
	e := &Engine{coordinator: c, options: o.resolve(), plans: map[string]plan{}}
	var problems []error
	if c == nil {
		problems = append(problems, failure.Bug("make engine", "", "there is no coordinator"))
	}
	for _, d := range definitions {
		if d == nil {
			problems = append(problems, plan{}.wrong("", "it is nil; give it one"))
			continue
		}
		p := d.defined()
		problems = append(problems, p.check())
		if _, twice := e.plans[p.key()]; twice {
			problems = append(problems, p.wrong("", "the name is used twice; use unique names, or different Versions"))
		}
		p.known = slices.Clone(p.known) // other engines may have the definition too
		for i := range p.known {
			p.known[i] = p.known[i].resolved()
		}
		e.plans[p.key()] = p
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if err := c.Handle(protocol, e); err != nil {
		return nil, err
	}
	return e, c.Reconciles(e.reconciles())
}

// Drives reports whether the engine has the definition of a type; see
// [coordinator.Selective].
func (e *Engine) Drives(kind string) bool {
	_, ok := e.plans[nameOf(kind)]
	return ok
}

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}

// Start begins a saga with this id, 1 to 200 bytes, unless it exists, and returns as soon as that
// is durable; see [Engine.Wait]. If it exists with another type or input (as JSON), the error is
// an [ErrMismatch]. After an Uncertain error the saga may have begun: start it again. An error of a
// function of the definition is in the chain of errors; nothing has begun then.
func (d Definition[I]) Start(ctx context.Context, e *Engine, id string, input I) error {
	return e.start(ctx, d.plan.key(), id, input, time.Time{})
}

// StartAt is [Definition.Start] of a saga that calls nothing before a time of the coordinator's
// clock. Its timeout counts from then. [Operator.Now] ends the wait.
func (d Definition[I]) StartAt(ctx context.Context, e *Engine, id string, input I, at time.Time) error {
	return e.start(ctx, d.plan.key(), id, input, at)
}

// Do starts a saga and waits for its end. Another Do of the same id returns the same result. The
// error is nil if the saga succeeded. If ctx ends the saga continues, and the error is Uncertain.
func (d Definition[I]) Do(ctx context.Context, e *Engine, id string, input I) (Outcome, error) {
	w := e.coordinator.Watch(id)
	defer w.Stop()
	if err := d.Start(ctx, e, id, input); err != nil {
		return Outcome{}, err
	}
	return e.wait(ctx, w, id)
}

// Start is [Definition.Start] with the name of a definition and an input that is JSON already. It
// uses the highest version, unless the name ends in "@v" and a number.
func (e *Engine) Start(ctx context.Context, definition, id string, input json.RawMessage) error {
	return e.start(ctx, e.highest(definition), id, input, time.Time{})
}

// StartAt is [Definition.StartAt] with the arguments of [Engine.Start].
func (e *Engine) StartAt(ctx context.Context, definition, id string, input json.RawMessage, at time.Time) error {
	return e.start(ctx, e.highest(definition), id, input, at)
}

// Begin starts a saga without its definition, which the owner of its shard must have. It has no
// timeout. Otherwise it works like [Engine.Start].
func Begin(ctx context.Context, j *journal.Journal, definition, id string, input json.RawMessage) error {
	text, err := compact(input)
	if err == nil {
		err = plan{name: definition}.checkName()
	}
	first := begin(text, time.Time{}, time.Time{}, false)
	if err == nil {
		_, err = replay([]journal.Entry{first}) // JSON that is nested too deeply can be written, and not read
	}
	if err != nil {
		return bug("start saga", id, err)
	}
	_, err = j.Begin(ctx, id, protocol+":"+definition, time.Now(), first)
	if errors.Is(err, journal.ErrExists) {
		return attach(ctx, j, definition, id, text)
	}
	return err
}

// known returns the definition of a key, and an input as JSON.
func (e *Engine) known(definition, id string, input any) (plan, []byte, error) {
	p, ok := e.plans[definition]
	if !ok {
		return p, nil, bug("start saga", id, fmt.Errorf("the engine has no definition %q: add it", definition))
	}
	text, err := compact(input)
	if err != nil {
		return p, nil, bug("start saga", id, err)
	}
	return p, text, nil
}

// highest returns the key of the highest version of a name, or name if there is none.
func (e *Engine) highest(name string) string {
	best, found := e.plans[name]
	for _, p := range e.plans {
		if p.name == name && (!found || p.version > best.version) {
			best, found = p, true
		}
	}
	if !found {
		return name
	}
	return best.key()
}

func compact(input any) ([]byte, error) {
	text, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("write its input: %w", err)
	}
	return text, nil
}

// start begins a saga, or attaches to the existing one.
func (e *Engine) start(ctx context.Context, definition, id string, input any, at time.Time) error {
	p, text, err := e.known(definition, id, input)
	if err != nil {
		return err
	}
	c, err := p.opening(id, text, e.coordinator.Now(), at)
	if err != nil {
		return err
	}
	entries := c.opened()
	if at.After(e.coordinator.Now()) {
		_, err = e.coordinator.Journal().Begin(ctx, id, protocol+":"+p.key(), at.Truncate(time.Millisecond), entries...)
	} else {
		err = e.coordinator.BeginPrepared(ctx, id, protocol+":"+p.key(), c, entries...)
	}
	if errors.Is(err, journal.ErrExists) {
		return attach(ctx, e.coordinator.Journal(), p.key(), id, text)
	}
	if err == nil {
		coordinator.Emit(e.options.Hooks.Started, observe.SagaStarted{Saga: id, Type: p.key()})
	}
	return err
}

// opening returns the execution of a saga before its first append. Its pending records are the begin
// record and those of the steps that may be called first, as many as fit.
func (p plan) opening(id string, input []byte, now, at time.Time) (*execution, error) {
	delayed := at.After(now)
	begins := at
	if !delayed {
		at, begins = time.Time{}, now
	}
	deadline, err := p.deadline(input, begins)
	if err != nil {
		return nil, bug("start saga", id, err)
	}
	first := begin(input, deadline, at, p.ended != nil)
	c, err := newExecution(p, driver.Head{Transaction: id}, []journal.Entry{first}, true)
	if err != nil {
		return nil, notBegun(id, err)
	}
	defer c.close()
	c.pending = []journal.Entry{first}
	stages, err := c.planner.rest(&c.m)
	if err != nil || len(stages) == 0 || delayed || stages[0].steps[0].sleep {
		return c, notBegun(id, err)
	}
	sents := c.sentRecords(stages)
	return c, c.add(now, false, sents[:min(len(sents), driver.MaxRecords-1)]...)
}

// notBegun returns the error of a definition's function, in the chain of errors: it is Definite unless it has
// another kind, because nothing began.
func notBegun(id string, err error) error {
	if err == nil || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: "start saga", Name: id, Kind: interlock.Definite, Err: err}
}

// opened returns the records of the first append.
func (c *execution) opened() []journal.Entry {
	entries := c.pending
	c.flushed()
	return entries
}

// deadline returns when a saga that starts now is aborted; zero means never.
func (p plan) deadline(input []byte, now time.Time) (time.Time, error) {
	var own time.Duration
	if p.timeoutOf != nil {
		var err error
		if own, err = p.timeoutOf(input); err != nil {
			return time.Time{}, err
		}
	}
	if timeout := cmp.Or(max(own, 0), p.timeout); timeout > 0 {
		return now.Add(timeout), nil
	}
	return time.Time{}, nil
}

// attach checks that the existing saga is the one to start.
func attach(ctx context.Context, j *journal.Journal, definition, id string, input []byte) error {
	t, err := records.Read(ctx, j, "start saga", id)
	if err != nil {
		return err
	}
	return mismatch(t.Head, &t.State, definition, input)
}

// mismatch returns an error if the saga is not the one to start.
func mismatch(head driver.Head, m *machine, definition string, input []byte) error {
	id := head.Transaction
	switch name := nameOf(head.Type); {
	case base(name) != base(definition):
		return &MismatchError{ID: id, Problem: fmt.Sprintf("it was started as a %q, not as a %q: give this one another id", name, definition)}
	case !bytes.Equal(m.input, input):
		return &MismatchError{ID: id, Problem: "it was started with other input: repeat a start with the same input, or give this saga another id"}
	}
	return nil
}

// Outcome is the state of a saga, and its result once State is final.
type Outcome struct {
	coordinator.Summary
	Input   json.RawMessage // of the start
	Outputs Outputs         // of completed steps, undone ones included
	Crossed []StepError     // steps that were, or may have been, done with an input from before an operator's edit
}

// Err returns nil while the saga is running and if it has succeeded, else an [*EndedError].
func (o Outcome) Err() error {
	if o.State.Final() && o.State != Succeeded {
		return &EndedError{o}
	}
	return nil
}

func outcome(head driver.Head, m *machine) Outcome {
	o := Outcome{Summary: coordinator.SummaryOf(head), Input: m.input, Outputs: m.outputs()}
	o.State, o.Reason, o.Halted, o.Dead = m.state, m.cause(), m.halted, m.dead()
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

// Look reads the state of a saga, whichever process drives it. If the saga does not exist, or its
// retention is over, the error is an [ErrNone].
func (e *Engine) Look(ctx context.Context, id string) (Outcome, error) {
	return records.Look(ctx, e.coordinator.Journal(), "look at saga", id)
}

// Wait blocks until a saga has ended, whichever process drives it. The error is that of
// [Outcome.Err]. If this process drives the saga and its definition does not fit, the error is a
// [*MismatchError], at once or within Options.Recheck of the coordinator. If ctx ends the saga
// continues, and the error is Uncertain; it also reports that this engine lacks the definition.
func (e *Engine) Wait(ctx context.Context, id string) (Outcome, error) {
	w := e.coordinator.Watch(id)
	defer w.Stop()
	return e.wait(ctx, w, id)
}

// wait reads the journal only if the saga has not ended in this process.
func (e *Engine) wait(ctx context.Context, w *coordinator.Waiter, id string) (Outcome, error) {
	var o Outcome
	err := w.Wait(ctx, func(ctx context.Context, left any) (ended bool, err error) {
		if end, ok := left.(endedHere); ok {
			o = outcome(end.head, &end.state)
			return true, nil
		}
		looked, err := e.Look(ctx, id)
		if err != nil {
			return o.State.Final(), err
		}
		o = looked
		if misfit, ok := left.(*MismatchError); ok && !o.State.Final() {
			return false, misfit
		}
		return o.State.Final(), nil
	})
	if err == nil {
		return o, o.Err()
	}
	if _, known := e.plans[o.Type]; interlock.Kind(err) == interlock.Uncertain && o.ID != "" && !known {
		return o, &interlock.Error{Op: "wait for saga", Name: id, Kind: interlock.Uncertain,
			Err: errors.Join(err, fmt.Errorf("this engine runs without its definition %q: another process must drive it", o.Type))}
	}
	return o, err
}
