package keyed

import (
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/interlock-dev/interlock/observe"
)

// runInline runs the only task of a key in the goroutine of its submitter. It is called with the
// mutex held, and returns without it.
func (x *engine[T]) runInline(t *task[T]) (err error) {
	b := x.q.box(t.key)
	b.running = true
	x.workers++
	x.running++
	x.mu.Unlock()
	defer func() { // also if the task ends this goroutine
		err = t.err
		x.workers--
		x.q.end(b)
		x.employ()
		x.mu.Unlock()
	}()
	x.run(b.key, []*task[T]{t}, 0)
	return t.err
}

// work runs turns until no mailbox is ready.
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

// turn runs one turn of a mailbox.
func (x *engine[T]) turn(b *mailbox[T], batch []*task[T]) {
	for used := 0; used < x.options.Turn && b.tasks.Len() > 0; used++ {
		batch = batch[:0]
		for len(batch) < x.most && b.tasks.Len() > 0 {
			batch = append(batch, x.q.take(b))
		}
		x.running += len(batch)
		depth := b.tasks.Len()
		x.employ()
		x.mu.Unlock()
		x.run(b.key, batch, depth)
	}
	x.q.end(b)
}

// run runs tasks, reports their outcomes and locks the mutex, even if a task ends the goroutine.
func (x *engine[T]) run(key string, batch []*task[T], depth int) {
	defer func() {
		x.mu.Lock()
		x.running -= len(batch)
		for _, t := range batch {
			if t.waits && t.signal != nil {
				t.signal <- t.err
			}
		}
	}()
	defer func() {
		for _, t := range batch {
			if t.done != nil {
				t.done(t.err)
			}
		}
	}()
	live := make([]*task[T], 0, len(batch))
	for _, t := range batch {
		if t.ctx.Err() != nil {
			t.err = x.refuse(key, ended("run task", key, t.ctx))
		} else {
			live = append(live, t)
		}
	}
	if len(live) > 0 {
		x.runObserved(key, live, depth)
	}
}

// runObserved calls the hooks around runContained.
func (x *engine[T]) runObserved(key string, live []*task[T], depth int) {
	hooks := x.options.Observe
	if hooks.Started == nil && hooks.Ended == nil {
		x.runContained(key, live)
		return
	}
	begun := x.now()
	if hooks.Started != nil {
		e := observe.KeyedStarted{Key: key, Tasks: len(live), Depth: depth}
		for _, t := range live {
			e.Wait = max(e.Wait, begun.Sub(t.queued))
		}
		hooks.Started(e)
	}
	defer func() {
		if hooks.Ended == nil {
			return
		}
		e := observe.KeyedEnded{Key: key, Tasks: len(live), Took: x.now().Sub(begun)}
		if i := slices.IndexFunc(live, func(t *task[T]) bool { return t.err != nil }); i >= 0 {
			e.Err = live[i].err
		}
		hooks.Ended(e)
	}()
	x.runContained(key, live)
}

// runContained runs tasks and sets the error of each. A panic becomes an error.
func (x *engine[T]) runContained(key string, live []*task[T]) {
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

// spread sets the errors of tasks that ran in one call.
func spread[T any](key string, live []*task[T], err error) {
	if err == nil {
		return
	}
	each, ok := err.(BatchError) // an error that wraps one may be about more than its tasks
	if ok && len(each) != len(live) {
		ok, err = false, bug("run batch", key, fmt.Errorf("%d errors for %d tasks: %w", len(each), len(live), err))
	}
	for i, t := range live {
		if t.err = err; ok {
			t.err = each[i]
		}
	}
}
