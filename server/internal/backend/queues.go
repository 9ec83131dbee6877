package backend

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/queue"
)

// Queues shows and repairs queues: those of a [queue.Table], each call in its own transaction, or
// the streams of a [redis.Queue].
type Queues interface {
	// Status shows all queues that have messages or dead letters, by name.
	Status(ctx context.Context) ([]queue.Status, error)
	// Stuck lists keys that are parked or fail, by place.
	Stuck(ctx context.Context, name string, limit int) ([]queue.Stuck, error)
	// DeadLetters lists dead letters, by place.
	DeadLetters(ctx context.Context, name string, l queue.DeadLetterQuery) ([]queue.DeadLetter, error)
	// DeadLetter returns one dead letter.
	DeadLetter(ctx context.Context, name string, place int64) (queue.DeadLetter, error)
	// Edit replaces the payload of a dead letter. Streams reject it.
	Edit(ctx context.Context, name string, by queue.By, place int64, payload []byte) error
	// Replay delivers dead letters again.
	Replay(ctx context.Context, name string, by queue.By, places ...int64) error
	// Discard deletes dead letters.
	Discard(ctx context.Context, name string, by queue.By, places ...int64) error
	// Resume continues a parked key.
	Resume(ctx context.Context, name string, by queue.By, key string) error
}

// Queues connects to the queues of a backend, in a database to those of a table, which it does not
// create; disconnect closes it. A backend without queues is a [*URLError]. The context bounds the
// opening only.
func (t Target) Queues(ctx context.Context, table queue.Table) (q Queues, disconnect func(), err error) {
	refusal := &URLError{Reason: t.Kind() + " keeps no queues; use a redis://, postgres:// or mysql:// URL"}
	if !t.Has(backend.Tables) && t.Kind() != "redis" {
		return nil, nil, refusal
	}
	b, q, err := open(ctx, t, func(b *backend.Backend) (Queues, error) {
		if db, ok := b.SQL(); ok {
			return tableQueues{&Database{db, nil}, table}, nil
		}
		kept, _ := b.Queue()
		if q, ok := kept.(*redis.Queue); ok {
			return streamQueues{q}, nil
		}
		return nil, refusal
	})
	return q, closing(b), err
}

type tableQueues struct {
	db    *Database
	table queue.Table
}

func (q tableQueues) Status(ctx context.Context) ([]queue.Status, error) {
	return in(ctx, q.db, func(tx driver.SQL) ([]queue.Status, error) { return q.table.Status(ctx, tx) })
}

func (q tableQueues) Stuck(ctx context.Context, name string, limit int) ([]queue.Stuck, error) {
	return in(ctx, q.db, func(tx driver.SQL) ([]queue.Stuck, error) { return q.table.Stuck(ctx, tx, name, limit) })
}

func (q tableQueues) DeadLetters(ctx context.Context, name string, l queue.DeadLetterQuery) ([]queue.DeadLetter, error) {
	return in(ctx, q.db, func(tx driver.SQL) ([]queue.DeadLetter, error) { return q.table.DeadLetters(ctx, tx, name, l) })
}

func (q tableQueues) DeadLetter(ctx context.Context, name string, place int64) (queue.DeadLetter, error) {
	return in(ctx, q.db, func(tx driver.SQL) (queue.DeadLetter, error) { return q.table.DeadLetter(ctx, tx, name, place) })
}

func (q tableQueues) Edit(ctx context.Context, name string, by queue.By, place int64, payload []byte) error {
	return q.db.In(ctx, func(tx driver.SQL) error { return q.table.Edit(ctx, tx, name, by, place, payload) })
}

func (q tableQueues) Replay(ctx context.Context, name string, by queue.By, places ...int64) error {
	return q.db.In(ctx, func(tx driver.SQL) error { return q.table.Replay(ctx, tx, name, by, places...) })
}

func (q tableQueues) Discard(ctx context.Context, name string, by queue.By, places ...int64) error {
	return q.db.In(ctx, func(tx driver.SQL) error { return q.table.Discard(ctx, tx, name, by, places...) })
}

func (q tableQueues) Resume(ctx context.Context, name string, by queue.By, key string) error {
	return q.db.In(ctx, func(tx driver.SQL) error { return q.table.Resume(ctx, tx, name, by, key) })
}

type streamQueues struct{ queue *redis.Queue }

func (q streamQueues) Status(ctx context.Context) (all []queue.Status, err error) {
	found, err := q.queue.Status(ctx)
	for _, s := range found {
		all = append(all, queue.Status{Queue: s.Queue, Messages: s.Messages, Dead: s.Dead, Parked: s.Parked, Leased: s.Leased, OldestMicros: s.Oldest.Microseconds()})
	}
	return all, err
}

func (q streamQueues) Stuck(ctx context.Context, name string, limit int) (all []queue.Stuck, err error) {
	found, err := q.queue.Stuck(ctx, name, limit)
	for _, s := range found {
		all = append(all, queue.Stuck{Key: s.Key, Place: s.Place, ID: s.ID, Attempts: s.Attempt, LastError: s.Reason, Parked: s.Parked, Wait: s.Wait})
	}
	return all, err
}

// streamLetters is the number of dead letters in one read.
const streamLetters = 1000

func (q streamQueues) DeadLetters(ctx context.Context, name string, l queue.DeadLetterQuery) (all []queue.DeadLetter, err error) {
	for after := l.After; ; {
		found, err := q.queue.DeadLetters(ctx, name, after, streamLetters)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if after = f.Place; l.Key == "" || f.Key == l.Key {
				all = append(all, letterOf(f))
			}
			if len(all) == l.Limit {
				return all, nil
			}
		}
		if len(found) < streamLetters {
			return all, nil
		}
	}
}

func letterOf(l redis.DeadLetter) queue.DeadLetter {
	return queue.DeadLetter{Message: l.QueueMessage, Place: l.Place, Attempts: l.Attempt, LastError: l.Reason, Added: l.Added, Died: l.Died}
}

func (q streamQueues) DeadLetter(ctx context.Context, name string, place int64) (queue.DeadLetter, error) {
	found, err := q.queue.DeadLetters(ctx, name, place-1, 1)
	if err == nil && (len(found) == 0 || found[0].Place != place) {
		err = &interlock.Error{Op: "show dead letter", Name: name, Kind: interlock.Definite, Err: fmt.Errorf("%w: no dead letter has the place %d", queue.ErrNotFound, place)}
	}
	if err != nil {
		return queue.DeadLetter{}, err
	}
	return letterOf(found[0]), nil
}

func (q streamQueues) Edit(_ context.Context, name string, _ queue.By, _ int64, _ []byte) error {
	return &interlock.Error{Op: "edit dead letter", Name: name, Kind: interlock.Definite,
		Err: errors.New("an entry of a stream cannot be changed; add a message with the right payload, and discard the dead letter")}
}

func (q streamQueues) Replay(ctx context.Context, name string, by queue.By, places ...int64) error {
	return q.queue.Replay(ctx, name, by.Reason, by.Actor, places...)
}

func (q streamQueues) Discard(ctx context.Context, name string, by queue.By, places ...int64) error {
	return q.queue.Discard(ctx, name, by.Reason, by.Actor, places...)
}

func (q streamQueues) Resume(ctx context.Context, name string, by queue.By, key string) error {
	return q.queue.Resume(ctx, name, key, by.Reason, by.Actor)
}
