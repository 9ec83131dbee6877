package keyed

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/observe"
)

// Options are how an executor is bounded. The zero value, and nil, mean the defaults.
type Options struct {
	// Concurrency is how many tasks, or batches, run at the same time; 0 means 64.
	// A Do of an idle key runs in its caller's goroutine, and counts.
	Concurrency int
	// PerKey is how many tasks of one key may be queued, beside the one that runs;
	// 0 means 1,024.
	PerKey int
	// Total is how many tasks may be queued in all; 0 means 65,536.
	Total int
	// Turn is how many tasks, or batches, of one key run in a row while other keys
	// are ready; 0 means 16 tasks, or 1 batch.
	Turn int
	// Wait makes Do and Go wait for room, first come first served, until their
	// context ends. Otherwise they return a [*FullError] at once.
	Wait bool
	// Observe receives what happens; nil logs failures, see package observe.
	Observe *observe.Keyed
}

// withDefaults fills in the defaults, and refuses what is below zero.
func (o *Options) withDefaults(turn int) (Options, error) {
	var full Options
	if o != nil {
		full = *o
	}
	for _, f := range []struct {
		field    *int
		standard int
	}{{&full.Concurrency, 64}, {&full.PerKey, 1024}, {&full.Total, 65536}, {&full.Turn, turn}} {
		if *f.field < 0 {
			return full, bug("make executor", "", errors.New("no option may be below zero"))
		}
		if *f.field == 0 {
			*f.field = f.standard
		}
	}
	full.Observe = full.Observe.WithDefaults()
	return full, nil
}

// Executor runs functions: those of one key one after the other in the order in
// which they were taken, those of different keys at the same time. It is safe for
// concurrent use, and must be closed.
type Executor struct {
	x *engine[func(context.Context) error]
}

// NewExecutor makes one; nil options are the defaults.
func NewExecutor(o *Options) (*Executor, error) {
	options, err := o.withDefaults(16)
	if err != nil {
		return nil, err
	}
	x := newEngine[func(context.Context) error](options, 1)
	x.call = func(_ string, live []*task[func(context.Context) error]) error {
		ctx, end := x.enter(live[0].ctx)
		defer end()
		live[0].err = live[0].work(ctx) // as it is, also if it is an Each
		return nil
	}
	return &Executor{x}, nil
}

// Do runs fn when it is key's turn, and returns its error. The context that fn is
// given descends from ctx; it ends with ctx, when fn has returned, or when a Close
// has waited long enough.
//
// Do returns once fn has returned, or will never run. If it never ran the error is
// a [*FullError]; interlock.ErrClosed; interlock.ErrName (a key has 1 to 512
// bytes); interlock.ErrReentered (ctx is that of a task of this executor, see the
// package's comment); or why ctx ended, as a Definite error. A panic of fn is a
// [*PanicError]. If fn ends its goroutine, as testing's FailNow does, that may be
// the caller's.
func (e *Executor) Do(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	if fn == nil {
		return bug("do task", key, errNil)
	}
	return e.x.do(ctx, key, fn)
}

// Go queues fn, and returns nil once it is taken. Then done is called exactly once,
// before the next task of key begins: with fn's error, or, if fn never runs because
// its context has ended by its turn or Close dropped it, with that. Until its turn a
// task whose context has ended keeps its place. done must return at once, and must
// not panic; nil means that nobody wants to know.
//
// ctx is that of the task, also when Go has returned: [context.WithoutCancel] makes
// one that outlives its request. Go waits for nothing but room, if Options.Wait says
// so, and not even that in the context of a task of this executor. If it returns an
// error fn never runs and done is not called; the errors are those of [Executor.Do].
func (e *Executor) Go(ctx context.Context, key string, fn func(ctx context.Context) error, done func(error)) error {
	if fn == nil {
		return bug("queue task", key, errNil)
	}
	return e.x.queue(ctx, key, fn, done)
}

var errNil = errors.New("the function is nil")

// Close takes no more tasks, those that wait for room included, and waits for those
// that it took. If ctx ends first it drops those that have not begun, ends the
// contexts of those that run, with the cause interlock.ErrClosed, and returns an
// error that says how many of each there were. It may be called again, and then
// waits for those that run.
func (e *Executor) Close(ctx context.Context) error { return e.x.close(ctx) }

// Load shows how busy it is.
func (e *Executor) Load() Load { return e.x.load() }

// Load is what an executor has at one moment.
type Load struct {
	Running int // tasks
	Queued  int // tasks that were taken, and have not begun
	Waiting int // callers that wait for room
	Keys    int // keys that have any of these; no memory is used for others
}

func (x *engine[T]) load() Load {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Load{Running: x.running, Queued: x.q.queued, Waiting: x.q.outside + x.q.waiting.Len(), Keys: len(x.q.boxes)}
}
