package once

import (
	"context"
	"slices"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx records m in a transaction of its own, runs fn there if m is new, and commits
// both. fn must not end the transaction, and must return the errors of its statements:
// on MariaDB what comes after a deadlock, or after a CREATE, is in no transaction. It
// returns the outcome, and no error, if m
// is [Done] or a [Duplicate]: acknowledge it. Otherwise the outcome is [Undone] or
// [Mismatched], and the error is:
//
//   - a [MismatchError], or a [GapError]: nothing was done;
//   - a Retryable error, such as a serialization failure or a deadlock: nothing was
//     committed, and the message may be delivered again. It is not retried here;
//   - an Uncertain error: COMMIT was sent and not answered, or fn ended the
//     transaction. Let the message be delivered again: it is then found a duplicate
//     if it was committed, and done if it was not;
//   - an error of fn, as it is, after a rollback. If it came from the database
//     and bears no kind of its own, it is given one;
//   - any other error, after which nothing was committed. It is Definite if ctx ended,
//     or if the database refused: that is no fault of the message.
//
// A rollback ignores the cancellation of ctx and has a bound of its own. It is
// also done if fn panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, m Message, fn func(ctx context.Context, tx T) error) (Outcome, error) {
	if fn == nil {
		return Undone, failure.Bug("receive", m.name(), "there is no function that makes its effect")
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

// BatchTx is [Tx] for many messages: it records them as [Inbox.Batch] does, runs fn
// once with those that are new, and commits. The outcomes are nil if there is an
// error; those that are [Mismatched] are none.
func BatchTx[T any](ctx context.Context, db driver.Beginner[T], in Inbox, messages []Message,
	fn func(ctx context.Context, tx T, fresh []Message) error) ([]Outcome, error) {
	if fn == nil {
		return nil, failure.Bug("receive batch", in.Consumer, "there is no function that makes the effect")
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

// inTx runs work in a transaction, and commits it if it is worth it. What was found
// without writing is true however the transaction ends.
func inTx[T any](ctx context.Context, db driver.Beginner[T], name string,
	work func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error)) error {
	if db == nil {
		return failure.Bug("begin", name, "there is no database")
	}
	return transact.Do(ctx, db.Begin, name, func(tx driver.Tx[T]) error {
		worth, err := work(ctx, tx)
		if err == nil && !worth {
			return transact.ErrNothing
		}
		return err
	})
}
