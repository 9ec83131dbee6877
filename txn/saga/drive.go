package saga

import (
	"context"
	"encoding/json"
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

// drive performs the actions of an execution under a turn.
type drive struct {
	*coordinator.Turn
	*execution
	engine   *Engine
	reported State // last state reported to the hooks
	late     map[string]lateCall

	reverted []observe.SagaCrossed // not durable yet
}

// Drive executes a saga as far as possible; see [coordinator.Protocol].
func (e *Engine) Drive(t *coordinator.Turn) error {
	err := e.drive(t)
	if m := (*MismatchError)(nil); errors.As(err, &m) && !errors.Is(err, coordinator.ErrForeign) {
		t.Conclude(m)
	}
	return err
}

func (e *Engine) drive(t *coordinator.Turn) error {
	name := nameOf(t.Head().Type)
	p, ok := e.plans[name]
	if !ok {
		return fmt.Errorf("%w: %w", coordinator.ErrForeign, &MismatchError{ID: t.ID(), Problem: fmt.Sprintf("the engine has no definition %q: add it", name)})
	}
	c, err := p.execution(t)
	if err != nil {
		return err
	}
	defer c.close()
	d := &drive{Turn: t, execution: c, engine: e, reported: c.m.state, late: map[string]lateCall{}}
	if d.m.state == DeadLetter && t.Due() {
		d.note(t.Now(), true, journal.Entry{Kind: recordRemind})
	}
	if t.TakenOver() {
		err = d.countTakeOver()
	}
	if err == nil {
		err = d.run()
	}
	err = d.leave(err)
	if head := t.Head(); err == nil && d.m.over && !head.Ended.IsZero() {
		t.Conclude(endedHere{head, d.m})
	}
	return err
}

// endedHere is the state of a saga that ended in a turn of this process.
type endedHere struct {
	head  driver.Head
	state machine
}

// execution returns the execution that began the saga in this process, or a new one from its records.
// That of a function is closed when the saga has begun.
func (p plan) execution(t *coordinator.Turn) (*execution, error) {
	if c, ok := t.Prepared().(*execution); ok && p.body == nil {
		c.scheduled = t.Head().Due
		return c, nil
	}
	return newExecution(p, t.Head(), t.Entries(), t.Fresh())
}

// countTakeOver counts a take-over before any call.
func (d *drive) countTakeOver() error {
	d.takeOver(d.Now(), d.Exhausted)
	d.careful = d.m.takeOvers >= careful
	if len(d.pending) == 0 {
		return nil
	}
	return d.write(time.Time{})
}

// nameOf returns the definition's name in the type of a transaction.
func nameOf(kind string) string { return strings.TrimPrefix(kind, protocol+":") }

// run performs actions until the saga rests.
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

// leave records results when the saga cannot continue here.
func (d *drive) leave(err error) error {
	if err != nil && d.m.takeOvers > 0 && d.HandsOver() {
		d.handOver()
	}
	if err == nil {
		return nil
	}
	if len(d.pending) > 0 && !errors.Is(err, journal.ErrConflict) {
		err = errors.Join(err, d.write(time.Time{}))
	}
	if len(d.late) > 0 {
		d.reportCrossings()
	}
	return err
}

// write makes pending records durable, by several appends if they are too many. Each prefix is a valid
// state to continue from.
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
	for i := range d.m.steps {
		p := &d.m.steps[i]
		if t := d.trials[p.key]; t != nil && t.err != nil && d.m.pending(p) {
			targets = append(targets, t.target)
		}
	}
	if d.m.atEnd {
		targets = []string{d.endTarget()}
	}
	if !d.Pause(until.Sub(d.Now()), targets...) {
		return d.Holds()
	}
	if d.Now().Before(until) {
		d.retryNow()
	}
	return nil
}

// round makes calls. Once no call may be made any more, only a Fail counts as an answer of the target.
func (d *drive) round(calls []*call) error {
	tasks, outputs := make([]coordinator.Task, len(calls)), make([][]byte, len(calls))
	about := Call{Type: d.plan.name, Outputs: d.m.outputs(), Input: d.m.input}
	for i, each := range calls {
		d.notCalled[each.p.key] = false
		each.trial.calls++
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
			d.revert(each)
			each.p = *d.m.find(each.p.key)
		}
		v := d.applyResult(d.Now(), each, outputs[i], errs[i], d.Random())
		switch {
		case errs[i] != nil:
			d.tried(each, v)
		case !each.local():
			d.late[each.p.key] = lateCall{d.m.inputOf(&each.p), each.phase == inUndo}
		}
	}
	return gone
}

// task returns a call for the coordinator.
func (d *drive) task(c *call, about Call, output *[]byte) coordinator.Task {
	s, input := c.step, d.m.inputOf(&c.p)
	task := coordinator.Task{Target: s.target, Timeout: s.timeout, MaxTime: s.longest, Call: branch.Call{
		Transaction: d.ID(), Branch: c.p.of, Step: c.p.at, Operation: branch.Do, Attempt: c.trial.calls}}
	if c.phase == beforePivot {
		task.Call.Deadline = d.m.deadline
	}
	about.Edited = c.p.edited
	act := func(ctx context.Context) (err error) {
		if *output, err = s.act(ctx, input); c.p.edited && errors.Is(err, branch.ErrOtherInput) {
			*output, err = c.callWithFormerInput(ctx, &d.m, err)
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
	task.Do = func(ctx context.Context) error { return act(with(ctx, about)) }
	return task
}

// announce calls the hooks for late edits, an end, and repeatedly for a dead letter.
func (d *drive) announce() {
	hooks := d.engine.options.Hooks
	for _, e := range d.reverted {
		coordinator.Emit(hooks.Crossed, e)
	}
	d.reverted = nil
	if d.m.state == DeadLetter {
		e := observe.SagaDead{Saga: d.ID(), Type: d.plan.name, Reason: d.m.cause()}
		for _, p := range d.m.dead() {
			e.Steps = append(e.Steps, p.Step)
		}
		coordinator.Emit(hooks.Dead, e)
	}
	if d.m.state != d.reported && d.m.state.Final() {
		coordinator.Emit(hooks.Ended, observe.SagaEnded{Saga: d.ID(), Type: d.plan.name, State: string(d.m.state), Reason: d.m.cause()})
	}
	d.reported = d.m.state
}

// tried reports a failed call, and a step that has failed often.
func (d *drive) tried(c *call, v verdict) {
	hooks := d.engine.options.Hooks
	e := observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Undo: c.phase == inUndo, Attempt: c.trial.calls, Err: c.trial.err}
	if v == again {
		e.Again = c.trial.next.Sub(d.Now())
	}
	coordinator.Emit(hooks.Tried, e)
	forever := c.phase == atPivot || c.phase == afterPivot
	if n := c.trial.attempts; forever && v == again && !c.trial.inProgress && n%d.engine.options.Stuck == 0 {
		coordinator.Emit(hooks.Stuck, observe.SagaStuck{Saga: d.ID(), Type: d.plan.name, Step: c.p.key, Attempts: n, Err: c.trial.err})
	}
}

// report calls OnEnd.
func (d *drive) report() error {
	o := outcome(d.Head(), &d.m)
	task := coordinator.Task{Target: d.endTarget(), Timeout: 30 * time.Second, Call: branch.Call{
		Transaction: d.ID(), Operation: "ended", Attempt: d.reports + 1},
		Do: func(ctx context.Context) error {
			return d.plan.ended(with(ctx, Call{Type: d.plan.name, Outputs: o.Outputs}), o)
		}}
	err := d.Round(task)[0]
	if gone := d.Holds(); gone != nil && err != nil {
		return gone
	}
	if err == nil {
		d.note(d.Now(), true, journal.Entry{Kind: recordEnd})
		return nil
	}
	d.reports++
	p := Policy{}.resolve()
	_, after := branch.ClassOf(err)
	wait := coordinator.Delay(p.First, p.Max, branch.ClassUnknown, after, d.reports, d.Random())
	d.again, d.timed = d.Now().Add(wait), after > 0
	if d.m.takeOvers > 0 { // an answer ends the count
		d.note(d.Now(), false, d.ongoing(err))
	}
	coordinator.Emit(d.engine.options.Hooks.Tried, observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Attempt: d.reports, Err: err, Again: wait})
	return nil
}

// A Call describes one call of an action or undo. Its Transaction is the saga's id. Its Branch is
// the step's key; for a step with an index, Branch is the name and Step the index. Its Operation
// is branch.Do or branch.Undo.
type Call struct {
	branch.Call
	Type    string          // the definition's name
	Outputs Outputs         // of completed steps
	Input   json.RawMessage // the saga's
	Edited  bool            // an operator has changed the step's input
}

type callKey struct{}

func with(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// From returns the call that ctx belongs to, or the zero Call outside of actions and undos.
func From(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	c.Call = branch.From(ctx)
	return c
}

// Heartbeat restarts the timeout of the action or undo that ctx belongs to, up to
// [Action.MaxTime] in total, and before the pivot up to the saga's timeout. It returns false if
// the time is over or ctx belongs to no call. It does not block.
func Heartbeat(ctx context.Context) bool { return coordinator.Heartbeat(ctx) }
