package keyed

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/observe"
)

// here runs a task of a key that has no other in its submitter's own goroutine:
// nothing is handed over. It is called with the mutex held, and returns without.
func (x *engine[T]) here(t *task[T]) (err error) {
	b := x.q.box(t.key)
	b.running = true
	x.workers++
	x.running++
	x.mu.Unlock()
	defer func() { // also if the task ends this goroutine
		err = t.err
		x.workers--
		x.q.end(b)
		x.spares.put(t)
		x.employ()
		x.mu.Unlock()
	}()
	t.alone[0] = t
	x.run(b, t.alone[:])
	return t.err
}

// work takes turns until there is no more to do.
func (x *engine[T]) work() {
	x.mu.Lock()
	x.waking = false
	var b *mailbox[T]
	defer func() {
		if b != nil { // a task has ended this goroutine
			x.q.end(b)
			go x.work()
		} else {
			x.workers--
			x.settle()
		}
		x.mu.Unlock()
	}()
	batch := make([]*task[T], 0, x.most)
	for b = x.q.begin(); b != nil; b = x.q.begin() {
		x.turn(b, batch)
	}
}

// turn runs tasks of one mailbox, and no more than one turn of them.
func (x *engine[T]) turn(b *mailbox[T], batch []*task[T]) {
	for used := 0; used < x.options.Turn && b.tasks.n > 0; used++ {
		batch = batch[:0]
		for len(batch) < x.most && b.tasks.n > 0 {
			batch = append(batch, x.q.take(b))
		}
		x.running += len(batch)
		x.employ()
		x.mu.Unlock()
		x.run(b, batch)
	}
	x.q.end(b)
}

// run runs tasks that were taken out, tells how they ended and locks the mutex,
// also if one of them ends the goroutine.
func (x *engine[T]) run(b *mailbox[T], batch []*task[T]) {
	defer func() {
		x.mu.Lock()
		x.running -= len(batch)
		for _, t := range batch {
			x.over(t)
		}
	}()
	defer func() {
		for _, t := range batch {
			if !t.waits && t.done != nil {
				t.done(t.err)
			}
		}
	}()
	live := batch
	for i, t := range batch {
		if t.ctx.Err() != nil {
			live = x.skim(batch, i)
			break
		}
	}
	if len(live) > 0 {
		x.observed(b.key, live)
	}
}

// skim is the tasks whose context has not ended; the first such is at from.
func (x *engine[T]) skim(batch []*task[T], from int) (live []*task[T]) {
	live = append(live, batch[:from]...)
	for _, t := range batch[from:] {
		if t.ctx.Err() != nil {
			t.err = x.refuse(t.key, ended("run task", t.key, t.ctx))
			continue
		}
		live = append(live, t)
	}
	return live
}

// over passes on the end of a task, unless it runs in its submitter's goroutine.
func (x *engine[T]) over(t *task[T]) {
	switch {
	case t.alone[0] != nil:
	case t.waits:
		t.signal <- t.err // from now on it is its submitter's
	default:
		x.spares.put(t)
	}
}

// observed is contained, told to the hooks.
func (x *engine[T]) observed(key string, live []*task[T]) {
	hooks := x.options.Observe
	if hooks.Started == nil && hooks.Ended == nil {
		x.contained(key, live)
		return
	}
	begun, n := x.now(), len(live)
	if hooks.Started != nil {
		hooks.Started(observe.KeyedStarted{Key: key, Tasks: n, Wait: longest(begun, live), Depth: x.depth(key)})
	}
	defer func() {
		if hooks.Ended != nil {
			hooks.Ended(observe.KeyedEnded{Key: key, Tasks: n, Took: x.now().Sub(begun), Err: firstError(live)})
		}
	}()
	x.contained(key, live)
}

// contained does the work of tasks, and gives each its error, whatever they do.
func (x *engine[T]) contained(key string, live []*task[T]) {
	var err error
	returned := false
	defer func() {
		if !returned {
			err = &PanicError{Key: key, Value: recover(), Stack: debug.Stack()}
		}
		spread(key, live, err)
	}()
	err = x.call(key, live)
	returned = true
}

// spread gives tasks that were run together their errors.
func spread[T any](key string, live []*task[T], err error) {
	if err == nil {
		return
	}
	for i, each := range outcomes(key, len(live), err) {
		live[i].err = each
	}
}

// outcomes is err for each of n tasks.
func outcomes(key string, n int, err error) []error {
	if each, is := err.(Each); is { // what wraps one may be of more than its parts
		if len(each) == n {
			return each
		}
		err = bug("run batch", key, fmt.Errorf("%d errors for %d tasks: %w", len(each), n, err))
	}
	return slices.Repeat([]error{err}, n)
}

func longest[T any](now time.Time, live []*task[T]) (wait time.Duration) {
	for _, t := range live {
		wait = max(wait, now.Sub(t.queued))
	}
	return wait
}

func firstError[T any](live []*task[T]) error {
	for _, t := range live {
		if t.err != nil {
			return t.err
		}
	}
	return nil
}

// depth is how many tasks of a key are queued. It locks by itself.
func (x *engine[T]) depth(key string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.q.boxes[key]; b != nil {
		return b.tasks.n
	}
	return 0
}
