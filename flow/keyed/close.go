package keyed

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// close drains until ctx ends, and then drops what has not begun.
func (x *engine[T]) close(ctx context.Context) error {
	const op = "close executor"
	if x.inside(ctx) {
		return bug(op, "", interlock.ErrReentered)
	}
	x.mu.Lock()
	x.closed = true
	outside := x.q.turnOutside()
	x.settle()
	x.mu.Unlock()
	for _, t := range outside {
		t.signal <- x.refuse(t.key, bug("queue task", t.key, interlock.ErrClosed))
	}
	select {
	case <-x.drained:
		x.cancel(interlock.ErrClosed)
		return nil
	case <-ctx.Done():
	}
	return x.abandon(context.Cause(ctx))
}

// abandon ends the contexts of the tasks that run and tells those that are queued
// that they never will.
func (x *engine[T]) abandon(why error) error {
	x.mu.Lock()
	dropped, running := x.q.dropQueued(), x.running
	x.settle()
	x.mu.Unlock()
	x.cancel(interlock.ErrClosed)
	for _, t := range dropped {
		t.tell(x.refuse(t.key, neverRan("run task", t.key, interlock.ErrClosed)))
	}
	if running == 0 && len(dropped) == 0 {
		return nil
	}
	return &interlock.Error{Op: "close executor", Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d tasks still run, and %d never will", why, running, len(dropped))}
}

// turnOutside takes out all tasks that were not let in yet, those of each key in
// their order.
func (q *queue[T]) turnOutside() (out []*task[T]) {
	for q.waiting.n > 0 {
		t := q.waiting.pop()
		t.box.places--
		out = append(out, t)
	}
	for _, b := range q.boxes {
		for b.outside.n > 0 {
			out = append(out, b.outside.pop())
		}
		q.forget(b)
	}
	q.outside = 0
	return out
}

// dropQueued takes out all tasks that were let in, and have not begun, those of
// each key in their order. Nobody is outside.
func (q *queue[T]) dropQueued() (out []*task[T]) {
	for b := q.ready; b != nil; b = q.ready {
		q.delist(b)
	}
	for _, b := range q.boxes {
		for b.tasks.n > 0 {
			out = append(out, b.tasks.pop())
			b.places--
		}
		q.forget(b)
	}
	q.queued = 0
	return out
}
