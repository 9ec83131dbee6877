package keyed

import (
	"context"
	"errors"
)

// Batches gives one function the work of a key, several pieces at a time, so that
// they can share what costs most: a commit, a round trip. The more is queued, the
// larger the batches; nothing waits for a batch to fill up. Otherwise it is an
// [Executor]. It is safe for concurrent use, and must be closed.
type Batches[T any] struct{ x *engine[T] }

// NewBatches makes one whose run gets up to most pieces of work of one key at once,
// in the order in which they were taken. The slice is run's only until it returns.
//
// The context of run is the executor's, not the submitters': it carries none of
// their values, and ends when run has returned or a Close has waited long enough.
// An error of run is that of every piece of the batch, unless it is an [Each], not
// wrapped, which has one for each. nil options are the defaults.
func NewBatches[T any](most int, run func(ctx context.Context, key string, batch []T) error, o *Options) (*Batches[T], error) {
	if run == nil {
		return nil, bug("make executor", "", errNil)
	}
	if most < 1 || most > 1<<16 {
		return nil, bug("make executor", "", errors.New("a batch has between 1 and 1<<16 pieces at most"))
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

// Do hands over a piece of work, and returns its outcome once the batch that it was
// in has ended. Its errors are those of [Executor.Do]; once it is in a batch that
// runs, the end of ctx does not matter to it.
func (b *Batches[T]) Do(ctx context.Context, key string, work T) error {
	return b.x.do(ctx, key, work)
}

// Go hands over a piece of work, and returns nil once it is taken; done receives
// its outcome, and all else is as for [Executor.Go].
func (b *Batches[T]) Go(ctx context.Context, key string, work T, done func(error)) error {
	return b.x.queue(ctx, key, work, done)
}

// Close has the behaviour of [Executor.Close].
func (b *Batches[T]) Close(ctx context.Context) error { return b.x.close(ctx) }

// Load shows how busy it is.
func (b *Batches[T]) Load() Load { return b.x.load() }
