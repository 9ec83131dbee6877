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

// Func handles a message in a transaction, and returns its result: at most [MaxResult] bytes, nil is
// one too. ctx ends with the claim of the message. Its effects are those of tx: what it does elsewhere
// may happen again. [Refuse] makes an error that is the result; any other one is a failure, after
// which the message is delivered again as queue.Options say.
type Func[T any] func(ctx context.Context, tx T, m queue.Received) (result []byte, err error)

// Handler is a handler of a queue that runs fn in a transaction, and commits the result with its
// effects. A message that has a result, or was cancelled, is done without fn. One with the id of
// another message, whose payload differs, becomes a dead letter. After the commit the notifier is notified
// with the id; nil leaves callers to look by themselves.
//
// fn may run for a message more than once, and twice at the same time if a claim was lost: the first
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

// errThere ends a transaction that has come too late: the message has a record.
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

// again is the pause after a commit of unknown outcome.
const again = 100 * time.Millisecond

// attempt records what work returns, in the transaction of its effects.
func (h handler[T]) attempt(ctx context.Context, m queue.Received, work func(driver.Tx[T]) ([]byte, error), state int64) error {
	written := false
	err := transact.Do(ctx, h.db.Begin, m.ID, func(tx driver.Tx[T]) error {
		there, err := h.t.read(ctx, opHandle, tx, m.ID, columns)
		if err != nil {
			return err
		}
		if there.state != none {
			return settled(m, there)
		}
		content, err := work(tx)
		if err == nil && len(content) > MaxResult {
			return queue.Dead(failure.Bug(opHandle, m.ID, "its result has %d bytes; %d are possible", len(content), MaxResult))
		} else if err != nil {
			return tx.Classify(err)
		}
		mine := newRecord(state, m.Payload, content)
		there, err = h.t.write(ctx, opHandle, tx, m.ID, mine)
		if err == nil && there.owner != mine.owner {
			err = settled(m, there)
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

// settled is the end of a message that has a record.
func settled(m queue.Received, there record) error {
	if err := mismatch(opHandle, m.QueueMessage, there); err != nil {
		return queue.Dead(err)
	}
	return errThere
}

// A refusal is the result of a message that has no effects.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// Refuse makes an error of a Func that is the result of the message: its effects are rolled back, and
// callers have a [RefusedError] with the reason, at most [MaxResult] bytes. The message is not delivered
// again.
func Refuse(reason string) error { return &refusal{reason} }

// A RefusedError is the result of a call whose message was refused: it has no effects. It is
// Definite, and the same for each call with the id.
type RefusedError struct{ ID, Reason string }

// Error says why.
func (e *RefusedError) Error() string { return fmt.Sprintf("call %q: refused: %s", e.ID, e.Reason) }

// ErrorKind is Definite.
func (e *RefusedError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// ErrCancelled means that a message was cancelled before it had effects; it will have none.
var ErrCancelled = errors.New("cancelled")

// ErrMismatch means that a message has the id of another one, whose payload differs.
var ErrMismatch = errors.New("another message has the id")

// mismatch compares a message with the record of its id.
func mismatch(op string, m queue.Message, there record) error {
	if there.hash == "" || there.hash == newRecord(done, m.Payload, nil).hash {
		return nil
	}
	return &interlock.Error{Op: op, Name: m.ID, Kind: interlock.Definite, Err: ErrMismatch}
}
