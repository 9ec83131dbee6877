package reply

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Send adds a message to its queue, without retries: a queue.Tx with Table.Add, or the Publish of a
// sink. After an Uncertain error the message may have been added.
type Send func(ctx context.Context, m queue.Message) error

// A Caller sends messages and waits for their results. It is safe for concurrent use, and has no
// goroutine of its own.
type Caller[T any] struct {
	db       driver.Beginner[T]
	t        Table
	notifier driver.Notifier
	send     Send
}

// NewCaller returns a caller. db is the database of the handler's Table, notifier that of the handler.
// Calls also poll for the result: after 10 ms at first, then at most every 250 ms, or every 2 s with a
// notifier.
func NewCaller[T any](db driver.Beginner[T], t Table, notifier driver.Notifier, send Send) *Caller[T] {
	return &Caller[T]{db, t, notifier, send}
}

const opCall = "call"

// Call sends a message, whose ID is required, and waits for its result until ctx ends. If there is a
// result already, it sends nothing: a repeated call with the same message is safe, and is right after
// any error that is Retryable or Uncertain. Errors:
//
//   - a [RefusedError] or an [ErrCancelled]: the message has no effects, and never will
//   - an [ErrMismatch], Definite: the id belongs to another message
//   - Uncertain, with the cause of ctx or an error of the database: the message was sent, and may have
//     effects, now or later
//   - an error of Send, or of the database before it, with its kind
func (c *Caller[T]) Call(ctx context.Context, m queue.Message) ([]byte, error) {
	if m.ID == "" || len(m.ID) > 255 {
		return nil, failure.Bug(opCall, m.ID, "the id has %d bytes; 1 to 255 are allowed", len(m.ID))
	}
	notified := make(chan struct{}, 1)
	if c.notifier != nil {
		defer c.notifier.Listen(func(name string) {
			if name == "" || name == m.ID {
				select {
				case notified <- struct{}{}:
				default:
				}
			}
		})()
	}
	recorded, err := c.look(ctx, m.ID)
	if err == nil && recorded.state == none {
		if err = c.send(ctx, m); err == nil {
			recorded, err = c.wait(ctx, m.ID, notified)
		}
	}
	if err != nil {
		return nil, err
	}
	return recorded.answer(m)
}

// answer returns the result of a call.
func (r record) answer(m queue.Message) ([]byte, error) {
	if err := mismatch(opCall, m, r); err != nil {
		return nil, err
	}
	switch r.state {
	case refused:
		return nil, &RefusedError{m.ID, string(r.content)}
	case cancelled:
		return nil, &interlock.Error{Op: opCall, Name: m.ID, Kind: interlock.Definite, Err: ErrCancelled}
	}
	return r.content, nil
}

// wait polls until there is a record. It ignores temporary errors of the database.
func (c *Caller[T]) wait(ctx context.Context, id string, notified <-chan struct{}) (record, error) {
	pauses := backoff.Policy{First: 10 * time.Millisecond, Max: 250 * time.Millisecond}
	if c.notifier != nil {
		pauses.Max = 2 * time.Second
	}
	for n := 1; ; n++ {
		pause := time.NewTimer(pauses.Delay(n, rand.Float64()))
		select {
		case <-notified:
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil {
			return record{}, &interlock.Error{Op: opCall, Name: id, Kind: interlock.Uncertain,
				Err: fmt.Errorf("no result yet; call again with the same id, or cancel: %w", context.Cause(ctx))}
		}
		recorded, err := c.look(ctx, id)
		switch kind := interlock.Kind(err); {
		case err == nil && recorded.state != none:
			return recorded, nil
		case err != nil && ctx.Err() == nil && (kind == interlock.Definite || kind == interlock.Bug):
			return record{}, &interlock.Error{Op: opCall, Name: id, Kind: interlock.Uncertain, Err: fmt.Errorf("its result cannot be read; call again with the same id: %w", err)}
		}
	}
}

// look reads a record; if db is a [driver.Autocommitter], in one request.
func (c *Caller[T]) look(ctx context.Context, id string) (recorded record, err error) {
	if a, ok := c.db.(driver.Autocommitter); ok {
		recorded, err = c.t.read(ctx, opCall, a.Autocommit(driver.ReadCommitted), id, columns)
		return recorded, failure.Uncommitted(err)
	}
	err = transact.Do(ctx, c.db.Begin, id, func(tx driver.Tx[T]) (err error) {
		recorded, err = c.t.read(ctx, opCall, tx, id, columns)
		if err == nil {
			err = transact.ErrNothing
		}
		return err
	})
	return recorded, failure.Uncommitted(err)
}

// Cancel prevents the effects of a message. It returns false if the message has a result already, which
// Call returns. Both are final. A message can be cancelled before it is sent. Its handler may still
// run; its effects are then rolled back. After an Uncertain error, repeat Cancel.
func (c *Caller[T]) Cancel(ctx context.Context, id string) (bool, error) {
	const op = "cancel call"
	if id == "" || len(id) > 255 {
		return false, failure.Bug(op, id, "the id has %d bytes; 1 to 255 are allowed", len(id))
	}
	mine := newRecord(cancelled, nil, nil)
	mine.hash = "" // of any message
	var recorded record
	err := transact.Do(ctx, c.db.Begin, id, func(tx driver.Tx[T]) (err error) {
		recorded, err = c.t.write(ctx, op, tx, id, mine)
		return err
	})
	if err == nil && c.notifier != nil {
		c.notifier.Notify(id)
	}
	return err == nil && recorded.state == cancelled, err
}
