package mysql

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock/internal/hints"
)

// task is something to do with the session, by the driver's goroutine: to try to take a
// lock, to release one, or something else. Tries that wait together share a statement, and
// so do releases.
type task struct {
	op, name string
	do       func(ctx context.Context) error // nil for tries and releases
	owner    string                          // of a release
	*try
	done chan error // capacity 1
}

// try is an attempt at a lock. The driver's goroutine writes it before the task is done.
type try struct {
	holding *holding
	ctx     context.Context // of the caller, who waits until it ends
	curious bool            // whether to find out who holds
	sent    bool            // the outcome is known
	outcome outcome

	counter, clock int64 // of the row that was written; 0 while there is none
}

// ask gives something to the goroutine and waits for it or ctx.
func (d *Driver) ask(ctx context.Context, op, name string, do func(context.Context) error) error {
	return d.submit(ctx, &task{op: op, name: name, do: do})
}

// submit gives a task to the goroutine and waits for it or ctx. The tasks of one name are
// done in the order of submit, also those that nobody waits for any more; so is what is
// neither a try nor a release with all others.
func (d *Driver) submit(ctx context.Context, t *task) error {
	if ctx.Err() != nil {
		return fail.Unsent(ctx, t.op, t.name)
	}
	t.done = answers.Get().(chan error)
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fail.Closed(t.op, t.name)
	}
	d.queue = append(d.queue, t)
	d.mu.Unlock()
	hints.Signal(d.work)
	select {
	case err := <-t.done:
		answers.Put(t.done)
		return err
	case <-ctx.Done():
		return fail.Unanswered(ctx, t.op, t.name)
	}
}

// answers are channels without an answer, which nobody uses.
var answers = sync.Pool{New: func() any { return make(chan error, 1) }}

// mostMembers bounds how many tasks share a statement.
const mostMembers = 64

// agenda chooses what to do together. It is of the driver's goroutine.
type agenda struct {
	names           map[string]bool
	releases, tries []*task
	gave            bool // releases went before tries that wait
}

// choose takes what to do next from queue: releases, tries, or one other task. Releases go
// before tries of other names, every other time: who has released asks for the next lock
// soon, and that one shares the commit of the tries that wait.
func (a *agenda) choose(queue []*task) (chosen, left []*task) {
	a.releases, a.tries = a.releases[:0], a.tries[:0]
	defer clear(a.names)
	for _, t := range queue {
		if t.do != nil {
			break
		}
		switch first := !a.names[t.name]; {
		case first && t.try == nil && len(a.releases) < mostMembers:
			a.releases = append(a.releases, t)
		case first && t.try != nil && len(a.tries) < mostMembers:
			a.tries = append(a.tries, t)
		}
		a.names[t.name] = true
	}
	both := len(a.releases) > 0 && len(a.tries) > 0
	chosen = a.releases
	if len(a.releases) == 0 || both && a.gave {
		chosen = a.tries
	}
	if a.gave = both && !a.gave; len(chosen) == 0 {
		chosen = append(chosen, queue[0])
	}
	rest := chosen
	left = slices.DeleteFunc(queue, func(t *task) bool {
		found := len(rest) > 0 && rest[0] == t
		if found {
			rest = rest[1:]
		}
		return found
	})
	return chosen, left
}

func (d *Driver) next() (tasks []*task) {
	for range 4 { // those who have just got an answer go on, and what they ask for goes along
		runtime.Gosched()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 && !d.closed {
		tasks, d.queue = d.agenda.choose(d.queue)
	}
	return tasks
}

// perform does tasks together, for as long as the server can be waited for.
func (d *Driver) perform(tasks []*task) {
	ctx := d.bounded()
	switch t := tasks[0]; {
	case t.do != nil:
		t.end(ctx, t.do(ctx))
	case t.try != nil:
		d.take(ctx, tasks)
	default:
		d.release(ctx, tasks)
	}
}

// apart does tasks one after the other, since one of them is at fault.
func (d *Driver) apart(tasks []*task) {
	for _, t := range slices.Clone(tasks) {
		d.perform([]*task{t})
	}
}

// end gives the answer.
func (t *task) end(ctx context.Context, err error) { t.done <- ofStatement(ctx, t.op, t.name, err) }

// grant gives the outcome of a try.
func (t *task) grant(o outcome) {
	t.outcome, t.sent = o, true
	t.done <- nil
}
