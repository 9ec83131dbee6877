package saga

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// drive is one saga on its way through this engine, from what the journal says to
// its end.
type drive struct {
	*coordinator.Turn
	engine *Engine
	fresh  bool // nobody has called the step in flight yet
	plan   plan
	m      machine
}

// Drive goes as far as it comes; see [coordinator.Protocol].
func (e *Engine) Drive(t *coordinator.Turn) error {
	d := &drive{Turn: t, engine: e, fresh: t.Fresh()}
	err := d.open()
	if err == nil && d.m.state == DeadLetter {
		err = d.remind()
	}
	for err == nil && !d.m.state.Final() {
		err = d.step()
	}
	return err
}

func (d *drive) open() (err error) {
	if d.m, err = replay(d.Entries()); err != nil {
		return bug("drive saga", d.ID(), err)
	}
	name := nameOf(d.Head().Type)
	p, ok := d.engine.plans[name]
	if !ok {
		return &MismatchError{ID: d.ID(), Problem: fmt.Sprintf("the engine was built without its definition %q: add it", name)}
	}
	d.plan = p
	return p.fits(d.ID(), &d.m)
}

// nameOf is the definition's name in the type of a transaction.
func nameOf(kind string) string { return strings.TrimPrefix(kind, protocol+":") }

// step does what is next, and writes what became of it.
func (d *drive) step() error {
	if d.m.undoing() == nil && d.m.quiet() {
		return bug("drive saga", d.ID(), fmt.Errorf("nothing follows in state %q", d.m.state))
	}
	entries, err := d.next()
	d.fresh = true // what follows was not sent by anybody else
	if err != nil {
		return err
	}
	return d.append(entries)
}

// append makes records durable, and only then goes by them.
func (d *drive) append(entries []journal.Entry) error {
	m, err := d.m.with(entries...)
	if err != nil {
		return bug("drive saga", d.ID(), err)
	}
	switch {
	case entries[len(entries)-1].Kind == recordEnd:
		err = d.End(entries...)
	case m.state == DeadLetter:
		err = d.Append(d.Now().Add(d.engine.options.Remind), entries...)
	default:
		err = d.Append(time.Time{}, entries...)
	}
	if err != nil {
		return err
	}
	was := d.m.state
	d.m = m
	d.announce(was)
	return nil
}

// announce tells the hooks of an end, and again of a dead letter.
func (d *drive) announce(was State) {
	hooks := d.engine.options.Hooks
	if d.m.state == DeadLetter && hooks.Dead != nil {
		e := observe.SagaDead{Saga: d.ID(), Type: d.plan.name, Reason: d.m.reason}
		for _, p := range d.m.steps {
			if p.fate == dead {
				e.Steps = append(e.Steps, p.name)
			}
		}
		hooks.Dead(e)
	}
	if d.m.state != was && d.m.state.Final() && hooks.Ended != nil {
		hooks.Ended(observe.SagaEnded{Saga: d.ID(), Type: d.plan.name, State: string(d.m.state), Reason: d.m.reason})
	}
}

// remind tells of a dead letter that is due, and makes it due again.
func (d *drive) remind() error {
	if !d.Due() {
		return nil
	}
	return d.append([]journal.Entry{{Kind: recordRemind}})
}

// next calls the step or the undo that is next until something follows.
func (d *drive) next() ([]journal.Entry, error) {
	work, err := d.task()
	if err != nil {
		return nil, err
	}
	t := trial{phase: d.m.phase(), maybe: !d.fresh}
	for attempt := 1; ; attempt++ {
		if d.m.late(d.Now()) {
			return d.m.givenUp(t.maybe, errLate)
		}
		if err := d.Holds(); err != nil {
			return nil, err
		}
		output, err := d.call(work, t.phase, attempt)
		if err == nil {
			return d.became(t.phase, output)
		}
		c, ongoing := branch.ClassOf(err)
		if d.Context().Err() != nil && c != branch.ClassFail {
			return nil, context.Cause(d.Context())
		}
		v := t.judge(work.policy, c)
		wait := work.policy.delay(c, ongoing, max(t.attempts, 1), d.Random())
		d.tried(work, attempt, err, v, wait)
		switch v {
		case bury:
			return d.m.buried(err)
		case notDone, perhapsNot:
			return d.m.givenUp(v == perhapsNot, err)
		}
		if !d.pause(t.phase, wait, work.name) {
			return nil, d.Holds()
		}
	}
}

// became is what follows from a call that succeeded.
func (d *drive) became(p phase, output []byte) ([]journal.Entry, error) {
	if p == inUndo {
		return d.m.tookBack()
	}
	return d.m.succeeded(d.plan, output, d.Now())
}

// task is what is next: the step in flight, or the one whose undo it is.
func (d *drive) task() (*step, error) {
	if p := d.m.current(); p != nil {
		return &d.plan.steps[len(d.m.steps)-1], nil
	}
	p := d.m.undoing()
	s := d.plan.undoOf(p.undo)
	if s == nil {
		return nil, &MismatchError{ID: d.ID(), Problem: fmt.Sprintf(
			"step %q is to be undone by %q, and the definition of %q has no undo of that name: give it one", p.name, p.undo, d.plan.name)}
	}
	return s, nil
}

// call makes one call, bounded in time.
func (d *drive) call(s *step, p phase, attempt int) (output []byte, err error) {
	task := coordinator.Task{Target: s.name, Timeout: s.timeout, Call: branch.Call{
		Transaction: d.ID(), Branch: s.name, Operation: branch.Do, Attempt: attempt}}
	if p == beforePivot {
		task.Call.Deadline = d.m.deadline
	}
	c := Call{Type: d.plan.name, Outputs: d.m.outputs()}
	task.Do = func(ctx context.Context) (err error) {
		output, err = s.act(with(ctx, c), d.m.input)
		return err
	}
	if p == inUndo {
		target := d.m.undoing()
		task.Call.Branch, task.Call.Operation = target.name, branch.Undo
		task.Do = func(ctx context.Context) error { return s.back(with(ctx, c), d.m.input, target.output) }
	}
	return output, d.Round(task)[0]
}

// pause waits before a call is repeated, no longer than the saga may take.
func (d *drive) pause(p phase, wait time.Duration, target string) bool {
	if p == beforePivot && !d.m.deadline.IsZero() {
		wait = min(wait, d.m.deadline.Sub(d.Now()))
	}
	return d.Pause(wait, target)
}

// tried tells of a call that did not succeed.
func (d *drive) tried(s *step, attempt int, err error, v verdict, wait time.Duration) {
	if f := d.engine.options.Hooks.Tried; f != nil {
		if v != again {
			wait = 0
		}
		f(observe.SagaTried{Saga: d.ID(), Type: d.plan.name, Step: s.name, Undo: d.m.state == Undoing, Attempt: attempt, Err: err, Again: wait})
	}
}
