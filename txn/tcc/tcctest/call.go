package tcctest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

// does is a call of an engine.
type does = func(ctx context.Context) (any, error)

// call injects the faults of a run into a call.
func (s *stage) call(ctx context.Context, resource string, do does) (any, error) {
	if s.run == nil {
		return do(ctx)
	}
	s.run.reach(resource)
	return s.run.call(ctx, branch.From(ctx), do)
}

func (r *run) call(ctx context.Context, c branch.Call, do does) (any, error) {
	if c.Transaction != id { // of another process
		hold, err := rehearsal.CatchPanic(ctx, do)
		r.answered(c, err)
		return hold, err
	}
	m := r.begin(ctx, c, do)
	r.await(ctx, func() bool { return r.tried(m.After) })
	defer r.turn(ctx, c.Branch)()
	at := rehearsal.Point{Words: fmt.Sprintf("the %s of %s", c.Operation, c.Branch), Name: c.Branch, Operation: c.Operation}
	return rehearsal.Between(r.Life, at, func() (any, error) { return r.deliver(ctx, c, do, m) })
}

// turn serializes calls in a run with a crash, so that the interrupted call is known. Concurrent
// calls have the order of their branches.
func (r *run) turn(ctx context.Context, branch string) (end func()) {
	if r.Crash == 0 {
		return func() {}
	}
	pause(ctx, time.Duration(1+slices.Index(r.branches, branch))*time.Millisecond)
	select {
	case r.turns <- struct{}{}:
		return func() { <-r.turns }
	case <-ctx.Done():
		return func() {}
	}
}

// begin counts a call, and returns its fault.
func (r *run) begin(ctx context.Context, c branch.Call, do does) fault {
	d, m := r.Begin(c.Branch, c.Operation)
	if r.LateConfirm && c.Operation == branch.Confirm && !r.isSwept() {
		m = rehearsal.Gone
	}
	if d == (callID{Name: r.Name, Operation: branch.Try, N: 1}) {
		r.try = func() { _, _ = rehearsal.Late(ctx, do) }
		if r.Alone {
			r.Before, r.seenBefore = r.See(), r.visible()
		}
	}
	return m
}

// deliver makes a call, as often as the scenario delivers it.
func (r *run) deliver(ctx context.Context, c branch.Call, do does, m fault) (hold any, err error) {
	if m.Rival {
		r.compete(ctx)
	}
	hold, err = rehearsal.Deliver(ctx, m, do, func(err error) { r.answered(c, err) })
	r.look(c)
	if m.Late && err == nil {
		r.arrive()
	}
	if m.Quits {
		r.quit()
	}
	if m.Answer != nil {
		return nil, m.Answer
	}
	return hold, err
}

// arrive delivers the first try of the branch late.
func (r *run) arrive() {
	r.try()
	if r.Alone {
		r.Late = r.See()
	}
}

// await waits until done returns true or ctx ends.
func (r *run) await(ctx context.Context, done func() bool) {
	for !done() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// compete runs the same in another process, once; concurrent calls wait for it.
func (r *run) compete(ctx context.Context) {
	r.Mu.Lock()
	first := !r.competed
	r.competed = true
	r.Mu.Unlock()
	if first {
		r.rival()
		close(r.rivalled)
	}
	select {
	case <-r.rivalled:
	case <-ctx.Done():
	}
}
