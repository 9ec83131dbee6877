package once

import (
	"context"
	"errors"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
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
		return Undone, bug("receive", m.name(), "there is no function that makes its effect")
	}
	var outcome Outcome
	err := transact(ctx, db, m.name(), func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		var own error
		outcome, err = in.once(ctx, tx, m, func(ctx context.Context) error {
			own = tx.Classify(fn(ctx, tx.Native()))
			return own
		})
		return outcome == Done, uncommitted(err, own)
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
		return nil, bug("receive batch", in.Consumer, "there is no function that makes the effect")
	}
	var outcomes []Outcome
	err := transact(ctx, db, in.Consumer, func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error) {
		var own error
		outcomes, err = in.batch(ctx, tx, messages, func() {}, func(ctx context.Context, fresh []Message) error {
			own = tx.Classify(fn(ctx, tx.Native(), fresh))
			return own
		})
		return slices.Contains(outcomes, Done), uncommitted(err, own)
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// transact runs work in a transaction, and commits it if it is worth it. What was
// found without writing is true however the transaction ends.
func transact[T any](ctx context.Context, db driver.Beginner[T], name string,
	work func(ctx context.Context, tx driver.Tx[T]) (worth bool, err error)) error {
	if db == nil {
		return bug("begin", name, "there is no database")
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return about("begin", name, err)
	}
	sent := false
	defer func() {
		if !sent {
			// If this fails the connection is closed; COMMIT was never sent.
			_ = tx.Rollback(ctx)
		}
	}()
	worth, err := work(ctx, tx)
	switch {
	case err != nil:
		return err
	case !worth:
		return nil
	case ctx.Err() != nil: // a client that is asked to commit now may not know what it did
		return &interlock.Error{Op: "commit", Name: name, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	sent = true
	return about("commit", name, tx.Commit(ctx))
}

// uncommitted makes an error of unknown outcome Retryable, unless it is the effect's
// own: what a statement did does not matter in a transaction that is never committed.
func uncommitted(err, own error) error {
	var e *interlock.Error
	if own != nil || !errors.As(err, &e) || e.Kind != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: interlock.Retryable, Err: e.Err}
}
