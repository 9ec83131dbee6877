package tcctest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/branch"
)

// does is a call as an engine makes it.
type does = func(ctx context.Context) (any, error)

// call lets the mishaps of a run befall a call.
func (s *stage) call(ctx context.Context, resource string, do does) (any, error) {
	if s.run == nil {
		return do(ctx)
	}
	s.run.reach(resource)
	return s.run.call(ctx, branch.From(ctx), do)
}

func (r *run) call(ctx context.Context, c branch.Call, do does) (any, error) {
	if c.Transaction != id { // that of somebody else
		hold, err := rehearsal.Guarded(ctx, do)
		r.answered(c, err)
		return hold, err
	}
	m := r.begin(ctx, c, do)
	r.await(ctx, func() bool { return r.tried(m.after) })
	defer r.turn(ctx, c.Branch)()
	name := fmt.Sprintf("the %s of %s", c.Operation, c.Branch)
	at := rehearsal.Point{Words: "before it called " + name, Name: c.Branch, Operation: string(c.Operation)}
	if err := r.life.Pass(at); err != nil {
		return nil, err
	}
	hold, err := r.deliver(ctx, c, do, m)
	at.Words = "before it heard the answer of " + name
	if err := r.life.Pass(at); err != nil {
		return nil, err
	}
	return hold, err
}

// turn has calls follow each other in a run with a crash, those that are made at once in
// the order of their branches: so it is known what a crash is in the midst of.
func (r *run) turn(ctx context.Context, branch string) (end func()) {
	if r.crash == 0 {
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

// begin counts a call, and returns its mishap.
func (r *run) begin(ctx context.Context, c branch.Call, do does) (m mishap) {
	d := deed{c.Branch, c.Operation, 1}
	r.mu.Lock()
	r.calls[deed{c.Branch, c.Operation, 0}]++
	d.n = r.calls[deed{c.Branch, c.Operation, 0}]
	r.last = c.Branch
	r.mu.Unlock()
	if r.fate != nil {
		m = r.fate(r, d)
	}
	if d == (deed{r.branch, branch.Try, 1}) {
		r.try = func() { _, _ = rehearsal.Late(ctx, do) }
		if r.alone {
			r.before, r.seenBefore = r.see(), r.visible()
		}
	}
	return m
}

// deliver makes a call as often as it arrives.
func (r *run) deliver(ctx context.Context, c branch.Call, do does, m mishap) (hold any, err error) {
	if m.rival {
		r.compete(ctx)
	}
	if !m.absent {
		hold, err = rehearsal.Guarded(ctx, do)
		r.answered(c, err)
		if m.twice {
			_, again := rehearsal.Guarded(ctx, do)
			r.answered(c, again)
		}
	}
	r.look(c)
	if m.late && err == nil {
		r.arrive()
	}
	if m.quits {
		r.quit()
	}
	if m.answer != nil {
		return nil, m.answer
	}
	return hold, err
}

// arrive has the first try of the branch arrive late.
func (r *run) arrive() {
	r.try()
	if r.alone {
		r.late = r.see()
	}
}

// await waits for something, but not beyond ctx.
func (r *run) await(ctx context.Context, is func() bool) {
	for !is() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// compete has another process run the same, once; others that come meanwhile wait for it.
func (r *run) compete(ctx context.Context) {
	r.mu.Lock()
	first := !r.competed
	r.competed = true
	r.mu.Unlock()
	if first {
		r.rival()
		close(r.rivalled)
	}
	select {
	case <-r.rivalled:
	case <-ctx.Done():
	}
}
