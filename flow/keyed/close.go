package keyed

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// close waits for accepted tasks until ctx ends, and then drops those that have not begun.
func (x *engine[T]) close(ctx context.Context) error {
	const op = "close executor"
	if x.inside(ctx) {
		return bug(op, "", interlock.ErrReentered)
	}
	x.mu.Lock()
	x.closed = true
	outside := x.q.dropWaiting()
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

// abandon cancels running tasks and drops queued ones.
func (x *engine[T]) abandon(why error) error {
	x.mu.Lock()
	dropped, running := x.q.dropQueued(), x.running
	x.settle()
	x.mu.Unlock()
	x.cancel(interlock.ErrClosed)
	for _, t := range dropped {
		t.drop(x.refuse(t.key, neverRan("run task", t.key, interlock.ErrClosed)))
	}
	if running == 0 && len(dropped) == 0 {
		return nil
	}
	return &interlock.Error{Op: "close executor", Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d tasks still run, %d were dropped", why, running, len(dropped))}
}

// dropWaiting removes all tasks that are not admitted, those of each key in order.
func (q *queue[T]) dropWaiting() (out []*task[T]) {
	for q.waiting.Len() > 0 {
		t := pop[T](&q.waiting)
		t.box.places--
		out = append(out, t)
	}
	for _, b := range q.boxes {
		for b.outside.Len() > 0 {
			out = append(out, pop[T](&b.outside))
		}
		q.forget(b)
	}
	q.outside = 0
	return out
}

// dropQueued removes all admitted tasks that have not begun, those of each key in order. No task
// waits for room when it is called.
func (q *queue[T]) dropQueued() (out []*task[T]) {
	for _, b := range q.boxes {
		if b.turn != nil {
			q.unready(b)
		}
		for b.tasks.Len() > 0 {
			out = append(out, pop[T](&b.tasks))
			b.places--
		}
		q.forget(b)
	}
	q.queued = 0
	return out
}
