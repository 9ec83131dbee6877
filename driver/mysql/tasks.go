package mysql

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock/internal/hints"
)

// task is an operation of the driver's goroutine on the session: a try to take a lock, a release, or
// another function. Waiting tries share a statement, and so do waiting releases.
type task struct {
	op, name string
	do       func(ctx context.Context) error // nil for tries and releases
	owner    string                          // of a release
	*try
	done chan error // capacity 1
}

// try is an attempt at a lock. The driver's goroutine writes it before the task is done.
type try struct {
	holding    *holding
	ctx        context.Context // of the caller, which waits until it ends
	wantHolder bool            // whether to read the holder
	sent       bool            // the outcome is known
	outcome    outcome

	counter, clock int64 // of the written row; 0 without one
}

// ask runs do in the goroutine, and waits for it or ctx.
func (d *Driver) ask(ctx context.Context, op, name string, do func(context.Context) error) error {
	return d.submit(ctx, &task{op: op, name: name, do: do})
}

// submit passes a task to the goroutine, and waits for it or ctx. Tasks of one name are done
// in the order of submit, even if the caller no longer waits: a release also if ctx has ended
// before. A task that is neither a try nor a release keeps its order with all others.
func (d *Driver) submit(ctx context.Context, t *task) error {
	if ctx.Err() != nil && (t.try != nil || t.do != nil) {
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

// answers has unused channels without an answer.
var answers = sync.Pool{New: func() any { return make(chan error, 1) }}

// mostMembers is the maximum number of tasks that share a statement.
const mostMembers = 64

// agenda chooses the tasks of the next statement. Only the driver's goroutine uses it.
type agenda struct {
	names           map[string]bool
	releases, tries []*task
	gave            bool // the last choice preferred releases to waiting tries
}

// choose takes the next tasks from queue: releases, tries, or one other task. Every other time
// releases precede tries of other names: after a release, its caller soon tries the next lock,
// and that try shares the commit of the waiting ones.
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
	for range 4 { // callers with a new answer continue, and their next tasks join this statement
		runtime.Gosched()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) > 0 && !d.closed {
		tasks, d.queue = d.agenda.choose(d.queue)
	}
	return tasks
}

// perform does tasks by one statement, within the patience.
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

// oneByOne does tasks one after the other, after one of them has failed all.
func (d *Driver) oneByOne(tasks []*task) {
	for _, t := range slices.Clone(tasks) {
		d.perform([]*task{t})
	}
}

// end sends the answer.
func (t *task) end(ctx context.Context, err error) { t.done <- ofStatement(ctx, t.op, t.name, err) }

// grant sends the outcome of a try.
func (t *task) grant(o outcome) {
	t.outcome, t.sent = o, true
	t.done <- nil
}
