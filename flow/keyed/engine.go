package keyed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
)

// engine runs the tasks of a queue. Its goroutines exist while there is work; there are at most
// Options.Concurrency.
type engine[T any] struct {
	options Options
	most    int                                     // tasks in one call
	call    func(key string, live []*task[T]) error // runs tasks of one key
	now     func() time.Time

	ctx    context.Context // of all tasks; ends when they are abandoned
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	q       queue[T]
	workers int           // goroutines that run tasks, including callers of Do
	waking  bool          // a goroutine was started and does not run yet
	running int           // tasks
	closed  bool          // no task is accepted any more
	drained chan struct{} // closed when all accepted tasks have ended
}

func newEngine[T any](options Options, most int) *engine[T] {
	x := &engine[T]{options: options, most: most, now: time.Now, drained: make(chan struct{}),
		q: queue[T]{perKey: options.PerKey, total: options.Total, boxes: map[string]*mailbox[T]{}}}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	return x
}

// enter returns the context of a task: it ends with ctx, when the executor abandons its
// tasks, and when end is called.
func (x *engine[T]) enter(ctx context.Context) (inside context.Context, end func()) {
	running := new(atomic.Bool)
	running.Store(true)
	inside, stop := join.Context(context.WithValue(ctx, x, running), x.ctx)
	return inside, func() { running.Store(false); stop() }
}

// inside reports whether ctx is the context of a running task of this executor.
func (x *engine[T]) inside(ctx context.Context) bool {
	running, ok := ctx.Value(x).(*atomic.Bool)
	return ok && running.Load()
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
	return x.submit(op, &task[T]{ctx: ctx, key: key, work: work, waits: true}, x.options.Wait)
}

// queue submits a task and waits for room at most.
func (x *engine[T]) queue(ctx context.Context, key string, work T, done func(error)) error {
	const op = "queue task"
	if err := x.check(ctx, op, key); err != nil {
		return err
	}
	wait := x.options.Wait && !x.inside(ctx)
	return x.submit(op, &task[T]{ctx: ctx, key: key, work: work, done: done}, wait)
}

// submit queues a task, waits for room if wait is set, and then waits for the task to end or to be
// admitted.
func (x *engine[T]) submit(op string, t *task[T], wait bool) error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return x.refuse(t.key, bug(op, t.key, interlock.ErrClosed))
	}
	if x.options.Observe.Started != nil {
		t.queued = x.now()
	}
	if t.waits && x.vacant(t.key) {
		return x.runInline(t)
	}
	full := x.q.put(t, wait)
	admitted := full == nil && t.in == &t.box.tasks
	if t.waits || !admitted {
		t.signal = make(chan error, 1)
	}
	x.employ()
	x.mu.Unlock()
	switch {
	case full != nil:
		return x.refuse(t.key, full)
	case admitted && !t.waits:
		return nil
	}
	select {
	case err := <-t.signal:
		return err
	case <-t.ctx.Done():
	}
	if x.leave(t) {
		return x.refuse(t.key, ended(op, t.key, t.ctx))
	}
	return <-t.signal
}

// check rejects an invalid key and a context that has ended.
func (x *engine[T]) check(ctx context.Context, op, key string) error {
	if err := checkKey(op, key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return x.refuse(key, ended(op, key, ctx))
	}
	return nil
}

// refuse reports an error to the hook, and returns it.
func (x *engine[T]) refuse(key string, err error) error {
	if hook := x.options.Observe.Refused; hook != nil {
		hook(observe.KeyedRefused{Key: key, Err: err})
	}
	return err
}

// leave removes a task that has not begun and whose submitter still waits. It locks the mutex.
func (x *engine[T]) leave(t *task[T]) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := x.q.leave(t)
	x.employ()
	return left
}

// vacant reports whether a task of key can begin at once without overtaking another. The mutex is
// held, as in all functions below unless they say otherwise.
func (x *engine[T]) vacant(key string) bool {
	return x.workers < x.options.Concurrency && x.q.ready.Len() == 0 && x.q.boxes[key] == nil
}

// employ starts a goroutine if a ready key needs one.
func (x *engine[T]) employ() {
	if x.q.ready.Len() > 0 && !x.waking && x.workers < x.options.Concurrency {
		x.workers++
		x.waking = true
		go x.work()
	}
	x.settle()
}

// settle closes drained when the executor is closed and all accepted tasks have ended.
func (x *engine[T]) settle() {
	if x.closed && x.workers == 0 && x.q.queued == 0 {
		select {
		case <-x.drained:
		default:
			close(x.drained)
		}
	}
}
