package saga

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// drive is one saga on its way through this engine, from what the journal says to
// its end, in a slot of the engine.
type drive struct {
	server *server
	id     string
	due    bool // found by its due time
	fresh  bool // nobody has called the step in flight yet
	inside bool // has a slot

	log  *journal.Log
	plan plan
	m    machine
}

// run goes as far as it comes. Where it fails the saga is due again later.
func (d *drive) run() {
	s := d.server
	defer s.release(d.id)
	if d.inside = d.inside || s.enter(); !d.inside {
		return
	}
	defer d.leave()
	err := d.open()
	if err == nil && d.m.state == DeadLetter {
		err = d.remind()
	}
	for err == nil && !d.m.state.Final() {
		err = d.step()
	}
	if err == nil {
		s.engine.tell(d.id)
		return
	}
	s.failed(d.id, err)
	if errors.Is(err, interlock.ErrStaleToken) {
		s.fail(err)
	}
}

// leave gives the slot back, if it has one.
func (d *drive) leave() {
	if d.inside {
		d.server.leave()
	}
	d.inside = false
}

func (d *drive) open() error {
	log, entries, err := d.server.shard.Open(d.server.ctx, d.id)
	if err != nil {
		return err
	}
	if log == nil {
		return &interlock.Error{Op: "drive saga", Name: d.id, Kind: interlock.Definite, Err: ErrNone}
	}
	if d.m, err = replay(entries); err != nil {
		return bug("drive saga", d.id, err)
	}
	d.log = log
	p, ok := d.server.engine.plans[log.Head().Type]
	if !ok {
		return &MismatchError{ID: d.id, Problem: fmt.Sprintf("the engine was built without its definition %q: add it", log.Head().Type)}
	}
	d.plan = p
	return p.fits(d.id, &d.m)
}

// step does what is next, and writes what became of it.
func (d *drive) step() error {
	if d.m.undoing() == nil && d.m.quiet() {
		return bug("drive saga", d.id, fmt.Errorf("nothing follows in state %q", d.m.state))
	}
	entries, err := d.next()
	d.fresh = true // what follows was not sent by anybody else
	if err != nil {
		return err
	}
	return d.append(entries)
}

// append makes records durable, and only then goes by them. It outlasts the
// context of Serve, but not the claim.
func (d *drive) append(entries []journal.Entry) error {
	m, err := d.m.with(entries...)
	if err != nil {
		return bug("drive saga", d.id, err)
	}
	ctx, options := context.WithoutCancel(d.server.ctx), d.server.engine.options
	switch {
	case entries[len(entries)-1].Kind == recordEnd:
		err = d.log.End(ctx, entries...)
	case m.state == DeadLetter:
		err = d.log.Append(ctx, options.now().Add(options.Remind), entries...)
	default:
		err = d.log.Append(ctx, options.now().Add(options.Recheck), entries...)
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
	hooks := d.server.engine.options.Hooks
	if d.m.state == DeadLetter && hooks.Dead != nil {
		e := observe.SagaDead{Saga: d.id, Type: d.plan.name, Reason: d.m.reason}
		for _, p := range d.m.steps {
			if p.fate == dead {
				e.Steps = append(e.Steps, p.name)
			}
		}
		hooks.Dead(e)
	}
	if d.m.state != was && d.m.state.Final() && hooks.Ended != nil {
		hooks.Ended(observe.SagaEnded{Saga: d.id, Type: d.plan.name, State: string(d.m.state), Reason: d.m.reason})
	}
}

// remind tells of a dead letter that is due, and makes it due again.
func (d *drive) remind() error {
	if !d.due {
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
		now := d.server.engine.options.now()
		if d.m.late(now) {
			return d.m.givenUp(t.maybe, errLate)
		}
		if err := d.server.holds(); err != nil {
			return nil, err
		}
		output, err := d.call(work, t.phase, attempt)
		if err == nil {
			return d.became(t.phase, output)
		}
		c, ongoing := classOf(err)
		if d.server.ctx.Err() != nil && c != classFail {
			return nil, context.Cause(d.server.ctx)
		}
		v := t.judge(work.policy, c)
		wait := work.policy.delay(c, ongoing, max(t.attempts, 1), d.server.engine.options.random())
		d.tried(work, attempt, err, v, wait)
		switch v {
		case bury:
			return d.m.buried(err)
		case notDone, perhapsNot:
			return d.m.givenUp(v == perhapsNot, err)
		}
		if !d.pause(t.phase, wait) {
			return nil, d.server.holds()
		}
	}
}

// became is what follows from a call that succeeded.
func (d *drive) became(p phase, output []byte) ([]journal.Entry, error) {
	if p == inUndo {
		return d.m.tookBack()
	}
	return d.m.succeeded(d.plan, output, d.server.engine.options.now())
}

// task is what is next: the step in flight, or the one whose undo it is.
func (d *drive) task() (*step, error) {
	if p := d.m.current(); p != nil {
		return &d.plan.steps[len(d.m.steps)-1], nil
	}
	p := d.m.undoing()
	s := d.plan.undoOf(p.undo)
	if s == nil {
		return nil, &MismatchError{ID: d.id, Problem: fmt.Sprintf(
			"step %q is to be undone by %q, and the definition of %q has no undo of that name: give it one", p.name, p.undo, d.plan.name)}
	}
	return s, nil
}

// call makes one call, bounded in time.
func (d *drive) call(s *step, p phase, attempt int) ([]byte, error) {
	now := d.server.engine.options.now()
	c := Call{Saga: d.id, Type: d.plan.name, Step: s.name, Undo: p == inUndo, Attempt: attempt,
		Epoch: d.server.shard.Epoch(), Deadline: now.Add(s.timeout), Outputs: d.m.outputs()}
	if p == beforePivot && !d.m.deadline.IsZero() && d.m.deadline.Before(c.Deadline) {
		c.Deadline = d.m.deadline
	}
	var output []byte
	if p == inUndo {
		target := d.m.undoing()
		c.Step, output = target.name, target.output
	}
	ctx, cancel := context.WithTimeoutCause(d.server.ctx, c.Deadline.Sub(now), fmt.Errorf("the time of step %q is up", c.Step))
	defer cancel()
	return guarded(context.WithValue(ctx, callKey{}, c), s, p, d.m.input, output)
}

// guarded makes the user's panic the failure of this saga, and of no other.
func guarded(ctx context.Context, s *step, p phase, input, output []byte) (result []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = Unknown(fmt.Errorf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	if p == inUndo {
		return nil, s.back(ctx, input, output)
	}
	return s.act(ctx, input)
}

// pause waits before a call is repeated, outside of the slot, and no longer than the
// saga may take.
func (d *drive) pause(p phase, wait time.Duration) bool {
	s := d.server
	if p == beforePivot && !d.m.deadline.IsZero() {
		wait = min(wait, d.m.deadline.Sub(s.engine.options.now()))
	}
	d.leave()
	d.inside = s.pause(wait) && s.enter()
	return d.inside
}

// tried tells of a call that did not succeed.
func (d *drive) tried(s *step, attempt int, err error, v verdict, wait time.Duration) {
	if f := d.server.engine.options.Hooks.Tried; f != nil {
		if v != again {
			wait = 0
		}
		f(observe.SagaTried{Saga: d.id, Type: d.plan.name, Step: s.name, Undo: d.m.state == Undoing, Attempt: attempt, Err: err, Again: wait})
	}
}
