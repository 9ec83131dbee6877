package once

import (
	"context"
	"slices"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx records m in a new transaction, runs fn there if m is new, and commits both. fn must not
// end the transaction, and must return the errors of its statements: on MariaDB, statements
// after a deadlock or a CREATE are outside of the transaction. If m is [Done] or a [Duplicate],
// Tx returns no error: acknowledge m. Otherwise the outcome is [Undone] or [Mismatched], and
// the error is:
//
//   - a [MismatchError] or a [GapError]: nothing was done
//   - a Retryable error, such as a serialization failure or a deadlock: nothing was committed,
//     and the message may be delivered again. Tx does not retry
//   - an Uncertain error: COMMIT was sent and no reply came, or fn ended the transaction. Let
//     the message be delivered again: if it was committed, it is then a duplicate, otherwise it
//     runs
//   - an error of fn, unchanged, after a rollback. If it came from the database and has no
//     kind, Tx adds one
//   - any other error, after which nothing was committed. It is Definite if ctx ended, or if
//     the database refused: the message is not the cause
//
// A rollback ignores the cancellation of ctx and has its own bound. Tx also rolls back if fn
// panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, m Message, fn func(ctx context.Context, tx T) error) (Outcome, error) {
	if fn == nil {
		return Undone, failure.Bug("receive", m.name(), "a function for the effect is required")
	}
	var outcome Outcome
	err := inTx(ctx, db, m.name(), func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		outcome, err = in.once(ctx, tx, m, func(ctx context.Context) error { return tx.Classify(fn(ctx, tx.Native())) })
		return outcome == Done, err
	})
	if err != nil && outcome == Done {
		outcome = Undone
	}
	return outcome, err
}

// BatchTx is [Tx] for many messages: it records them as [Inbox.Batch] does, runs fn once with
// those that are new, and commits. If there is an error, the outcomes are nil. [Mismatched]
// messages are not an error.
func BatchTx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, messages []Message,
	fn func(ctx context.Context, tx T, fresh []Message) error) ([]Outcome, error) {
	if fn == nil {
		return nil, failure.Bug("receive batch", in.Consumer, "a function for the effect is required")
	}
	var outcomes []Outcome
	err := inTx(ctx, db, in.Consumer, func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		outcomes, err = in.batch(ctx, tx, messages, func() {}, func(ctx context.Context, fresh []Message) error {
			return tx.Classify(fn(ctx, tx.Native(), fresh))
		})
		return slices.Contains(outcomes, Done), err
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// inTx runs work in a transaction, and commits unless that is useless. A result that was read
// without writing is true however the transaction ends.
func inTx[T any](ctx context.Context, db driver.Beginner[T], name string,
	work func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error)) error {
	if db == nil {
		return failure.Bug("begin", name, "a database is required")
	}
	return transact.Do(ctx, db.Begin, name, func(tx driver.Tx[T]) error {
		worth, err := work(ctx, tx)
		if err == nil && !worth {
			return transact.ErrNothing
		}
		return err
	})
}
