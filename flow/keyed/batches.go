package keyed

import (
	"context"
	"errors"
)

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
