package reply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Func handles a message in a transaction and returns its result: at most [MaxResult] bytes; nil is a
// result too. ctx ends with the claim of the message. Effects outside of tx may happen again. An error
// of [Refuse] is a result as well; any other error is a failure, after which queue.Options decide.
type Func[T any] func(ctx context.Context, tx T, m queue.Received) (result []byte, err error)

// Handler returns a handler of a queue that runs fn in a transaction and commits the result with its
// effects. A message that has a result, or was cancelled, is done without fn. A message with the id of
// another one, but another payload, becomes a dead letter. After the commit Handler notifies with the
// id; without a notifier callers poll.
//
// fn may run more than once for a message, and twice at the same time if a claim is lost. The first
// commit wins, and the other transaction is rolled back.
func Handler[T any](db driver.Beginner[T], t Table, notifier driver.Notifier, fn Func[T]) queue.Handler {
	h := handler[T]{db, t, notifier, fn}
	return h.handle
}

type handler[T any] struct {
	db       driver.Beginner[T]
	t        Table
	notifier driver.Notifier
	fn       Func[T]
}

const opHandle = "handle call"

// errThere rolls a transaction back because the message has a record.
var errThere = errors.New("the message has a result")

func (h handler[T]) handle(ctx context.Context, m queue.Received) error {
	err := h.attempt(ctx, m, func(tx driver.Tx[T]) ([]byte, error) { return h.fn(ctx, tx.Native(), m) }, done)
	var no *refusal
	if errors.As(err, &no) {
		err = h.attempt(ctx, m, func(driver.Tx[T]) ([]byte, error) { return []byte(no.reason), nil }, refused)
	}
	if err == nil && h.notifier != nil {
		h.notifier.Notify(m.ID)
	}
	return err
}

const again = 100 * time.Millisecond // pause after a commit of unknown outcome

// attempt stores the result of work in the transaction of its effects.
func (h handler[T]) attempt(ctx context.Context, m queue.Received, work func(driver.Tx[T]) ([]byte, error), state int64) error {
	written := false
	err := transact.Do(ctx, h.db.Begin, m.ID, func(tx driver.Tx[T]) error {
		recorded, err := h.t.read(ctx, opHandle, tx, m.ID, columns)
		if err != nil {
			return err
		}
		if recorded.state != none {
			return settled(m, recorded)
		}
		content, err := work(tx)
		if err == nil && len(content) > MaxResult {
			return queue.Dead(failure.Bug(opHandle, m.ID, "the result has %d bytes; at most %d are allowed", len(content), MaxResult))
		} else if err != nil {
			return tx.Classify(err)
		}
		mine := newRecord(state, m.Payload, content)
		recorded, err = h.t.write(ctx, opHandle, tx, m.ID, mine)
		if err == nil && recorded.owner != mine.owner {
			err = settled(m, recorded)
		}
		written = err == nil
		return err
	})
	switch {
	case errors.Is(err, errThere):
		return nil
	case written && interlock.Kind(err) == interlock.Uncertain: // a lost answer is not the fault of the message
		return queue.Retry(again, err)
	}
	return err
}

// settled returns the outcome of a message that has a record.
func settled(m queue.Received, recorded record) error {
	if err := mismatch(opHandle, m.QueueMessage, recorded); err != nil {
		return queue.Dead(err)
	}
	return errThere
}

// A refusal is the result of a message that has no effects.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// Refuse returns an error of a Func that is the result of the message. Its effects are rolled back, and
// callers get a [RefusedError] with the reason, of at most [MaxResult] bytes. The message is not
// delivered again.
func Refuse(reason string) error { return &refusal{reason} }

// A RefusedError is the result of a call whose message was refused: it has no effects. It is
// Definite, and the same for each call with the id.
type RefusedError struct{ ID, Reason string }

// Error returns a message with the id and the reason.
func (e *RefusedError) Error() string { return fmt.Sprintf("call %q: refused: %s", e.ID, e.Reason) }

// ErrorKind returns Definite.
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ErrCancelled means that a message was cancelled before it had effects; it will have none.
var ErrCancelled = errors.New("cancelled")

// ErrMismatch means that another message, with another payload, has the id.
var ErrMismatch = errors.New("another message has the id")

// mismatch compares a message with the record of its id.
func mismatch(op string, m queue.Message, recorded record) error {
	if recorded.hash == "" || recorded.hash == newRecord(done, m.Payload, nil).hash {
		return nil
	}
	return &interlock.Error{Op: op, Name: m.ID, Kind: interlock.Definite, Err: ErrMismatch}
}
