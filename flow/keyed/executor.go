package keyed

import (
	"cmp"
	"context"
	"errors"

	"github.com/interlock-dev/interlock/observe"
)

// Options of an executor; nil and the zero value work.
type Options struct {
	// Concurrency is how many tasks, or batches, run at the same time; 0 means 64. A Do of an idle
	// key runs in its caller's goroutine and counts as well.
	Concurrency int
	// PerKey bounds the queued tasks of one key, without the running one; 0 means 1,024.
	PerKey int
	// Total bounds the queued tasks of all keys; 0 means 65,536.
	Total int
	// Turn is how many tasks, or batches, of one key run before another ready key has its turn; 0
	// means 16 tasks, or 1 batch.
	Turn int
	// Wait makes Do and Go wait for room, first come first served, until their context ends. If it
	// is false, they return a [*FullError] at once.
	Wait bool
	// Observe receives events; nil logs failures, see package observe.
	Observe *observe.Keyed
}

// withDefaults fills in the defaults and rejects negative values.
func (o *Options) withDefaults(turn int) (Options, error) {
	full := *cmp.Or(o, &Options{})
	for _, f := range []struct {
		field    *int
		standard int
	}{{&full.Concurrency, 64}, {&full.PerKey, 1024}, {&full.Total, 65536}, {&full.Turn, turn}} {
		if *f.field < 0 {
			return full, bug("make executor", "", errors.New("an option is negative"))
		}
		if *f.field == 0 {
			*f.field = f.standard
		}
	}
	full.Observe = full.Observe.WithDefaults()
	return full, nil
}

// Executor runs functions: those of one key one after the other, in the order in which they were
// accepted, and those of different keys at the same time. It is safe for concurrent use, and must
// be closed.
type Executor struct {
	x *engine[func(context.Context) error]
}

// NewExecutor returns an executor; nil options are the defaults.
func NewExecutor(o *Options) (*Executor, error) {
	options, err := o.withDefaults(16)
	if err != nil {
		return nil, err
	}
	x := newEngine[func(context.Context) error](options, 1)
	x.call = func(_ string, live []*task[func(context.Context) error]) error {
		ctx, end := x.enter(live[0].ctx)
		defer end()
		live[0].err = live[0].work(ctx) // unchanged, even if it is a BatchError
		return nil
	}
	return &Executor{x}, nil
}

// Do runs fn when it is the key's turn, and returns its error. The context of fn is derived from
// ctx; it ends with ctx, when fn returns, or when a Close stops waiting.
//
// Do returns when fn has returned or will never run. If fn never ran, the error is one of these:
//   - a [*FullError]
//   - interlock.ErrClosed
//   - interlock.ErrName: a key has 1 to 512 bytes
//   - interlock.ErrReentered: ctx is that of a task of this executor, see the package comment
//   - the cause of the end of ctx, Definite
//
// A panic of fn is a [*PanicError]. fn may run in the caller's goroutine: if it ends its
// goroutine, as testing's FailNow does, that of the caller ends.
func (e *Executor) Do(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	if fn == nil {
		return bug("do task", key, errNil)
	}
	return e.x.do(ctx, key, fn)
}

// Go queues fn and returns nil once it is accepted. Then done is called exactly once, before the
// next task of the key begins: with the error of fn or, if fn never runs, with the reason: its
// context ended before its turn, or Close dropped it. A task whose context has ended keeps its
// place until its turn. done must return at once and must not panic; it may be nil.
//
// ctx remains the context of the task after Go returns: pass [context.WithoutCancel] for a task
// that outlives its request. Go waits only for room, and only if Options.Wait is set and ctx is
// not that of a task of this executor. If Go returns an error, fn never runs and done is not
// called; the errors are those of [Executor.Do].
func (e *Executor) Go(ctx context.Context, key string, fn func(ctx context.Context) error, done func(error)) error {
	if fn == nil {
		return bug("queue task", key, errNil)
	}
	return e.x.queue(ctx, key, fn, done)
}

var errNil = errors.New("the function is nil")

// Close rejects new tasks and those that wait for room, and waits for the accepted ones. If ctx
// ends first, it drops tasks that have not begun, and cancels running ones with the cause
// interlock.ErrClosed. The error has both numbers. A second call waits for the running tasks.
func (e *Executor) Close(ctx context.Context) error { return e.x.close(ctx) }

// Load returns the present load.
func (e *Executor) Load() Load { return e.x.load() }

// Load is the number of tasks of an executor at one moment.
type Load struct {
	Running int
	Queued  int // accepted and not begun
	Waiting int // callers that wait for room
	Keys    int // keys that have any of these; no memory is used for others
}

func (x *engine[T]) load() Load {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Load{Running: x.running, Queued: x.q.queued, Waiting: x.q.outside + x.q.waiting.Len(), Keys: len(x.q.boxes)}
}

// Batches passes several queued tasks of a key to one function call, so that they can share a
// commit or a round trip. The longer the queue, the larger the batch; no task waits for a batch
// to fill up. In all else it is an [Executor]. It is safe for concurrent use, and must be closed.
type Batches[T any] struct{ x *engine[T] }

// NewBatches returns an executor that calls run with up to most tasks of one key, in the order in
// which they were accepted. run must not keep the slice. nil options are the defaults.
//
// The context of run belongs to the executor: it has no values of the submitters, and ends when
// run returns or a Close stops waiting. An error of run is the error of every task of the batch,
// unless it is a [BatchError], not wrapped, which has one for each.
func NewBatches[T any](most int, run func(ctx context.Context, key string, batch []T) error, o *Options) (*Batches[T], error) {
	if run == nil {
		return nil, bug("make executor", "", errNil)
	}
	if most < 1 || most > 1<<16 {
		return nil, bug("make executor", "", errors.New("the largest batch is 1 to 65536 tasks"))
	}
	options, err := o.withDefaults(1)
	if err != nil {
		return nil, err
	}
	x := newEngine[T](options, most)
	x.call = func(key string, live []*task[T]) error {
		batch := make([]T, len(live))
		for i, t := range live {
			batch[i] = t.work
		}
		ctx, end := x.enter(x.ctx)
		defer end()
		return run(ctx, key, batch)
	}
	return &Batches[T]{x}, nil
}

// Do submits a task and returns its outcome when its batch has ended. Its errors are those of
// [Executor.Do]. Once the batch runs, the end of ctx has no effect.
func (b *Batches[T]) Do(ctx context.Context, key string, work T) error {
	return b.x.do(ctx, key, work)
}

// Go submits a task and returns nil once it is accepted; done receives its outcome. All else is as
// for [Executor.Go].
func (b *Batches[T]) Go(ctx context.Context, key string, work T, done func(error)) error {
	return b.x.queue(ctx, key, work, done)
}

// Close is [Executor.Close].
func (b *Batches[T]) Close(ctx context.Context) error { return b.x.close(ctx) }

// Load is [Executor.Load].
func (b *Batches[T]) Load() Load { return b.x.load() }
