package saga

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// drive runs an execution under a coordinator: it performs the actions.
type drive struct {
	*coordinator.Turn
	*execution
	engine *Engine
	told   State // by the hooks
	late   map[string]lateCall

	reverted []observe.SagaCrossed // that are not durable yet
}

// Drive executes a saga as far as possible; see [coordinator.Protocol].
func (e *Engine) Drive(t *coordinator.Turn) error {
	err := e.drive(t)
	e.fitted(t.ID(), err)
	return err
}

func (e *Engine) drive(t *coordinator.Turn) error {
	name := nameOf(t.Head().Type)
	p, ok := e.plans[name]
	if !ok {
		return fmt.Errorf("%w: %w", coordinator.ErrForeign, &MismatchError{ID: t.ID(), Problem: fmt.Sprintf("the engine was built without its definition %q: add it", name)})
	}
	c, err := p.execution(t)
	if err != nil {
		return err
	}
	defer c.close()
	d := &drive{Turn: t, execution: c, engine: e, told: c.m.state, late: map[string]lateCall{}}
	if d.m.state == DeadLetter && t.Due() {
		err = d.note(t.Now(), true, journal.Entry{Kind: recordRemind})
	}
	if err == nil && t.TakenOver() {
		err = d.inherit()
	}
	if err == nil {
		err = d.run()
	}
	err = d.leave(err)
	if head := t.Head(); err == nil && d.m.over && !head.Ended.IsZero() {
		t.Conclude(concluded{head, d.m})
	}
	return err
}

// concluded is a saga that has ended in a turn, with the state that its records lead to.
type concluded struct {
	head  driver.Head
	state machine
}

// execution is that of a turn: the one that has begun the saga, or one by its records.
func (p plan) execution(t *coordinator.Turn) (*execution, error) {
	if c, ok := t.Prepared().(*execution); ok && t.Fresh() {
		c.scheduled = t.Head().Due
		return c, nil
	}
	return newExecution(p, t.Head(), t.Entries(), t.Fresh())
}

// inherit counts a take-over before anything is called.
func (d *drive) inherit() error {
	err := d.takeOver(d.Now(), d.Exhausted)
	d.careful = d.m.takeOvers >= careful
	if err == nil && len(d.pending) > 0 {
		err = d.write(time.Time{})
	}
	return err
}

// nameOf is the definition's name in the type of a transaction.
func nameOf(kind string) string { return strings.TrimPrefix(kind, protocol+":") }

// run moves until the saga rests.
func (d *drive) run() error {
	for {
		m, err := d.next(d.Now())
		if err == nil && m.write {
			err = d.write(m.due)
		}
		if err == nil && len(m.calls) > 0 {
			err = d.round(m.calls)
		}
		if err == nil && m.report {
			err = d.report()
		}
		if err == nil && !m.wait.IsZero() {
			err = d.pause(m.wait)
		}
		if err != nil || m.rest {
			return err
		}
	}
}

// leave writes what was achieved when the saga cannot go on.
func (d *drive) leave(err error) error {
	if err != nil && d.Context().Err() != nil && d.m.takeOvers > 0 {
		err = errors.Join(err, d.handOver())
	}
	if err == nil {
		return nil
	}
	if len(d.pending) > 0 && !errors.Is(err, journal.ErrConflict) {
		err = errors.Join(err, d.write(time.Time{}))
	}
	if len(d.late) > 0 {
		d.crossings()
	}
	return err
}

// write makes what is pending durable. What is more than one append takes is right
// in parts: its order is such that each part can be gone on from.
func (d *drive) write(due time.Time) error {
	if d.m.state == DeadLetter {
		due = d.Now().Add(d.engine.options.Remind)
	}
	entries := d.pending
	for ; len(entries) > driver.MaxRecords; entries = entries[driver.MaxRecords:] {
		if err := d.Append(time.Time{}, entries[:driver.MaxRecords]...); err != nil {
			return err
		}
		d.execution.pending = entries[driver.MaxRecords:]
	}
	var err error
	if d.m.over {
		err = d.End(entries...)
	} else {
		err = d.Append(due, entries...)
	}
	if err != nil {
		return err
	}
	d.flushed()
	clear(d.late)
	d.announce()
	return nil
}

// pause waits before calls are repeated.
func (d *drive) pause(until time.Time) error {
	var targets []string
	for _, p := range d.m.steps {
		if t := d.trials[p.key]; t != nil && t.err != nil {
			targets = append(targets, t.target)
		}
	}
	if !d.Pause(until.Sub(d.Now()), targets...) {
		return d.gone()
	}
	if d.Now().Before(until) {
		d.healed()
	}
	return nil
}

// gone is why the drive ends before its saga rests.
func (d *drive) gone() error {
	if err := d.Holds(); err != nil {
		return err
	}
	return context.Cause(d.Context())
}

// round makes calls. Once nothing may be called any more a failure is no answer of
// its target, unless that says so.
func (d *drive) round(calls []*call) error {
	d.called(calls)
	tasks, outputs := make([]coordinator.Task, len(calls)), make([][]byte, len(calls))
	about := Call{Type: d.plan.name, Outputs: d.m.outputs(), Input: d.m.input}
	for i, each := range calls {
		tasks[i] = d.task(each, about, &outputs[i])
	}
	errs := d.Round(tasks...)
	gone := d.Holds()
	for i, each := range calls {
		if each.local() && (errors.Is(errs[i], journal.ErrConflict) || errors.Is(errs[i], interlock.ErrStaleToken)) {
			return errs[i]
		}
		class, _ := branch.ClassOf(errs[i])
		if errs[i] != nil && gone != nil && class != branch.ClassFail {
			continue
		}
		if errs[i] == nil && each.former > 0 {
			if err := d.revert(each); err != nil {
				return err
			}
			each.p = *d.m.find(each.p.key)
		}
		v, err := d.took(d.Now(), each, outputs[i], errs[i], d.Random())
		switch {
		case errs[i] != nil:
			d.tried(each, v)
		case !each.local():
			d.late[each.p.key] = lateCall{d.m.inputOf(&each.p), each.phase == inUndo}
		}
		if err != nil {
			return err
		}
	}
	return gone
}

// task is a call as the coordinator makes it.
func (d *drive) task(c *call, about Call, output *[]byte) coordinator.Task {
	s, input := c.step, d.m.inputOf(&c.p)
	task := coordinator.Task{Target: s.target, Timeout: s.timeout, Call: branch.Call{
		Transaction: d.ID(), Branch: c.p.of, Step: c.p.at, Operation: branch.Do, Attempt: c.trial.calls}}
	if c.phase == beforePivot {
		task.Call.Deadline = d.m.deadline
	}
	about.Edited = c.p.edited
	act := func(ctx context.Context) (err error) {
		if *output, err = s.act(ctx, input); c.p.edited && errors.Is(err, branch.ErrOtherInput) {
			*output, err = c.formerly(ctx, &d.m, err)
		}
		return err
	}
	if c.local() {
		act = func(ctx context.Context) error { return d.runLocal(ctx, c, input) }
	}
	if c.phase == inUndo {
		task.Call.Operation = branch.Undo
		act = func(ctx context.Context) error { return s.back(ctx, input, c.p.output) }
	}
	task.Do = func(ctx context.Context) error {
		if s.longest > 0 {
			var end func()
			ctx, end = context.WithTimeout(ctx, s.longest)
			defer end()
		}
		return act(with(ctx, about))
	}
	return task
}

// The calls of hooks.

// announce tells of edits that came too late, of an end, and again of a dead letter.
func (d *drive) announce() {
	hooks := d.engine.options.Hooks
	for _, e := range d.reverted {
		if hooks.Crossed != nil {
			hooks.Crossed(e)
		}
	}
	d.reverted = nil
	if d.m.state == DeadLetter && hooks.Dead != nil {
		e := observe.SagaDead{Saga: d.ID(), Type: d.plan.name, Reason: d.m.why()}
		for _, p := range d.m.dead() {
			e.Steps = append(e.Steps, p.Step)
		}
		hooks.Dead(e)
	}
	if d.m.state != d.told && d.m.state.Final() && hooks.Ended != nil {
		hooks.Ended(observe.SagaEnded{Saga: d.ID(), Type: d.plan.name, State: string(d.m.state), Reason: d.m.why()})
	}
	d.told = d.m.state
}

// failedReport reports a call of OnEnd that failed.
func (d *drive) failedReport(err error, wait time.Duration) {
	if f := d.engine.options.Hooks.Tried; f != nil {
		f(observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Attempt: d.reports, Err: err, Again: wait})
	}
}

// tried tells of a call that did not succeed, and of a step that seems never to.
func (d *drive) tried(c *call, v verdict) {
	hooks := d.engine.options.Hooks
	if hooks.Tried != nil {
		e := observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Undo: c.phase == inUndo, Attempt: c.trial.calls, Err: c.trial.err}
		if v == again {
			e.Again = c.trial.next.Sub(d.Now())
		}
		hooks.Tried(e)
	}
	forever := c.phase == atPivot || c.phase == afterPivot
	if n := c.trial.attempts; forever && v == again && !c.trial.ongoing && n%d.engine.options.Stuck == 0 && hooks.Stuck != nil {
		hooks.Stuck(observe.SagaStuck{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Attempts: n, Err: c.trial.err})
	}
}
