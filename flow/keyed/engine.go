package keyed

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// engine runs the tasks of a queue. Its goroutines exist while there is work, and
// are at most as many as tasks may run.
type engine[T any] struct {
	options Options
	most    int                                     // tasks that one call may run
	call    func(key string, live []*task[T]) error // does the work of tasks of one key
	now     func() time.Time
	key     any // by which a context knows that it is that of a task of this engine

	ctx    context.Context // of all tasks; ends when they are to be abandoned
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	q       queue[T]
	workers int           // goroutines that run tasks, those of callers of Do included
	waking  bool          // one of them was started, and has not come here yet
	running int           // tasks
	closed  bool          // nothing is taken any more
	drained chan struct{} // closed once nothing is left of what was taken before that
	spares  spares[T]
}

func newEngine[T any](options Options, most int) *engine[T] {
	x := &engine[T]{options: options, most: most, now: time.Now, drained: make(chan struct{}),
		q: queue[T]{perKey: options.PerKey, total: options.Total, boxes: map[string]*mailbox[T]{}}}
	x.key = insideKey[T]{x}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	return x
}

// do submits a task and waits for its end.
func (x *engine[T]) do(ctx context.Context, key string, work T) error {
	const op = "do task"
	if err := x.check(ctx, op, key); err != nil {
		return err
	}
	if x.inside(ctx) {
		return x.refuse(key, bug(op, key, interlock.ErrReentered))
	}
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return x.refuse(key, bug(op, key, interlock.ErrClosed))
	}
	t := x.newTask(ctx, key, work)
	t.waits = true
	if x.vacant(key) {
		return x.here(t)
	}
	if t.signal == nil {
		t.signal = make(chan error, 1)
	}
	full := x.q.put(t, x.options.Wait)
	x.employ()
	x.mu.Unlock()
	if full != nil {
		x.recycle(t)
		return x.refuse(key, full)
	}
	return x.await(t, op)
}

// await waits for the end of a task, or takes it out if ctx ends before it began.
func (x *engine[T]) await(t *task[T], op string) error {
	ctx, key := t.ctx, t.key
	select {
	case err := <-t.signal:
		x.recycle(t)
		return err
	case <-ctx.Done():
	}
	if x.leave(t) {
		x.recycle(t)
		return x.refuse(key, ended(op, key, ctx))
	}
	err := <-t.signal
	x.recycle(t)
	return err
}

// submit queues a task, and waits for no more than room for it.
func (x *engine[T]) submit(ctx context.Context, key string, work T, done func(error)) error {
	const op = "queue task"
	if err := x.check(ctx, op, key); err != nil {
		return err
	}
	wait := x.options.Wait && !x.inside(ctx)
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return x.refuse(key, bug(op, key, interlock.ErrClosed))
	}
	t := x.newTask(ctx, key, work)
	t.done = done
	full := x.q.put(t, wait)
	taken := full == nil && t.in == &t.box.tasks
	if !taken && full == nil {
		t.signal = make(chan error, 1)
		t.awaited = true
	}
	x.employ()
	x.mu.Unlock()
	switch {
	case taken:
		return nil
	case full != nil:
		x.recycle(t)
		return x.refuse(key, full)
	}
	select {
	case err := <-t.signal:
		return err
	case <-ctx.Done():
	}
	if x.giveUp(t) {
		return x.refuse(key, ended(op, key, ctx))
	}
	return <-t.signal
}

// check refuses what no task can be made of.
func (x *engine[T]) check(ctx context.Context, op, key string) error {
	if err := named(op, key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return x.refuse(key, ended(op, key, ctx))
	}
	return nil
}

// refuse tells about an error, and returns it.
func (x *engine[T]) refuse(key string, err error) error {
	if hook := x.options.Observe.Refused; hook != nil {
		hook(observe.KeyedRefused{Key: key, Err: err})
	}
	return err
}

// vacant reports whether a task of key could begin at once without overtaking
// anybody. The mutex is held, as in all that follows where nothing else is said.
func (x *engine[T]) vacant(key string) bool {
	return x.workers < x.options.Concurrency && x.q.ready == nil && x.q.boxes[key] == nil
}

// employ sees to it that somebody runs what is ready, and tells who was let in.
func (x *engine[T]) employ() {
	for _, t := range x.q.admitted {
		t.signal <- nil
	}
	clear(x.q.admitted)
	x.q.admitted = x.q.admitted[:0]
	if x.q.ready != nil && !x.waking && x.workers < x.options.Concurrency {
		x.workers++
		x.waking = true
		go x.work()
	}
	x.settle()
}

// settle notices the end of a drain.
func (x *engine[T]) settle() {
	if x.closed && x.workers == 0 && x.q.queued == 0 {
		select {
		case <-x.drained:
		default:
			close(x.drained)
		}
	}
}

// leave takes a task out that has not begun. It locks by itself.
func (x *engine[T]) leave(t *task[T]) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := x.q.leave(t)
	x.employ()
	return left
}

// giveUp takes a task out that was not taken in yet. It locks by itself.
func (x *engine[T]) giveUp(t *task[T]) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.in == nil || t.in == &t.box.tasks {
		return false
	}
	x.q.leave(t)
	x.employ()
	return true
}

func (x *engine[T]) newTask(ctx context.Context, key string, work T) *task[T] {
	t := x.spares.get()
	t.ctx, t.key, t.work = ctx, key, work
	if x.options.Observe.Started != nil {
		t.queued = x.now()
	}
	return t
}

// recycle keeps a task that nobody refers to any more. It locks by itself.
func (x *engine[T]) recycle(t *task[T]) {
	x.mu.Lock()
	x.spares.put(t)
	x.mu.Unlock()
}
