package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// Tx enters resource under the token of c in a new transaction, before fn reads anything, and
// runs fn. It commits if fn returns nil and c is still valid. fn must not end the transaction;
// its context also ends when c does.
//
// It returns nil if the transaction was committed. Otherwise:
//
//   - a [interlock.StaleTokenError]: a newer holder has entered; fn did not run
//   - [interlock.ErrExpired], or the cause with which c ended: nothing was committed, and the
//     claim cannot be used any more
//   - a Retryable error: nothing was committed, and the caller may call Tx again. Tx does not
//     retry. Examples are a serialization failure, and a wait to begin and enter that exceeded
//     the claim's remaining time although the claim was renewed
//   - an Uncertain error: COMMIT was sent, and no reply arrived before ctx or the claim ended.
//     Tx waits at most for the time that the claim had left when COMMIT was sent. On MariaDB
//     also: fn ended the transaction, as CREATE and similar statements do. To find out whether
//     it was committed, call Tx again and read, while the claim lasts
//   - an error of fn, unchanged, after a rollback. If it came from the database and has no
//     kind, Tx adds one
//
// A rollback ignores the cancellation of ctx and has its own bound. Tx also rolls back if fn
// panics. While the claim is renewed, only ctx and fn itself bound what fn waits for on a
// connection that is silent.
func Tx[T any](ctx context.Context, db driver.Beginner[T], marks Marks, c interlock.Claim, resource string,
	fn func(ctx context.Context, tx T) error) error {
	if !c.Valid() {
		return claimEnded(c, resource, nil)
	}
	inside, leave := join.Context(ctx, c.Context())
	defer leave()
	inside, expire := context.WithCancelCause(inside)
	late := time.AfterFunc(c.Remaining()+enterGrace, func() { expire(errNotEntered) })
	defer late.Stop()
	tx, err := db.Begin(inside)
	if err != nil {
		return withClaimEnd(c, resource, retryableWait(inside, resource, failure.About("begin", resource, err)))
	}
	sent := false
	defer func() {
		if !sent {
			// If this fails the connection is closed; COMMIT was never sent.
			_ = tx.Rollback(ctx)
		}
	}()
	if err := work(inside, tx, marks, c, resource, late, fn); err != nil {
		return err
	}
	sent = true
	return commit(inside, tx, c, resource)
}

// enterGrace lets the server end a statement that waits to enter before the client closes the connection.
const enterGrace = time.Second

// errNotEntered ends a wait to begin and enter. A claim may be renewed forever, so Tx waits at most for the
// time that the claim had left at the start, also for a server that is silent.
var errNotEntered = errors.New("the transaction did not enter within the time that its claim had left")

// retryableWait makes err Retryable if the wait was too long: nothing was committed.
func retryableWait(ctx context.Context, resource string, err error) error {
	if context.Cause(ctx) != errNotEntered || errors.Is(err, interlock.ErrStaleToken) || interlock.Kind(err) == interlock.Retryable {
		return err
	}
	return &interlock.Error{Op: "enter", Name: resource, Kind: interlock.Retryable, Err: err}
}

// commit waits for the reply while c lasts, even if ctx never ends. A claim may be renewed
// forever, so commit waits at most for the time that the claim had left at the start.
func commit[T any](ctx context.Context, tx driver.Tx[T], c interlock.Claim, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Remaining())
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return withClaimEnd(c, resource, failure.About("commit", resource, err))
	}
	return nil
}

// work enters the mark, stops late, and runs fn, between BEGIN and COMMIT.
func work[T any](ctx context.Context, tx driver.Tx[T], marks Marks, c interlock.Claim, resource string, late *time.Timer,
	fn func(ctx context.Context, tx T) error) error {
	err := enter(ctx, tx, marks, c, resource)
	if !late.Stop() && err == nil {
		err = &interlock.Error{Op: "enter", Name: resource, Kind: interlock.Retryable, Err: errNotEntered}
	}
	if err != nil {
		return withClaimEnd(c, resource, retryableWait(ctx, resource, failure.Uncommitted(err)))
	}
	if !c.Valid() { // the wait was too long
		return claimEnded(c, resource, nil)
	}
	if err := fn(ctx, tx.Native()); err != nil {
		return withClaimEnd(c, resource, failure.Uncommitted(tx.Classify(err)))
	}
	switch {
	case !c.Valid():
		return claimEnded(c, resource, nil)
	case ctx.Err() != nil:
		return &interlock.Error{Op: "commit", Name: resource, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	return nil
}

// enter bounds the transaction and raises the mark.
func enter[T any](ctx context.Context, tx driver.Tx[T], marks Marks, c interlock.Claim, resource string) error {
	if err := validateResource("bound transaction", resource); err != nil {
		return err
	}
	idle, err := bound(ctx, tx, c.Remaining())
	if err != nil {
		return failure.About("bound transaction", resource, err)
	}
	if err := marks.Enter(ctx, unread{tx}, resource, c.Token(), c.Owner()); err != nil {
		return retryableTimeout(ctx, err)
	}
	if c.Remaining() >= idle {
		return nil
	}
	// Entering took so long that the transaction might now be idle for longer than the claim
	// lasts.
	if _, err := bound(ctx, tx, c.Remaining()); err != nil {
		return failure.About("bound transaction", resource, err)
	}
	return nil
}

// retryableTimeout makes the error of a statement that the server cancelled Retryable: entering only
// took too long.
func retryableTimeout(ctx context.Context, err error) error {
	var e *interlock.Error
	state := failure.SQLState(err)
	cancelled := state == "57014" || state == "70100" // PostgreSQL, MariaDB
	if !cancelled || ctx.Err() != nil || !errors.As(err, &e) {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: interlock.Retryable, Err: e.Err}
}

// bound keeps the transaction from being idle, or a statement from running, for longer than
// remaining allows; see the package comment.
func bound[T any](ctx context.Context, tx driver.Tx[T], remaining time.Duration) (idle time.Duration, err error) {
	idle = remaining * 2 / 3
	return idle, tx.Bound(ctx, idle, remaining)
}

// claimEnded returns the error for a claim that has ended; because is nil or its result.
func claimEnded(c interlock.Claim, resource string, because error) error {
	err := interlock.ErrExpired
	if c.Context().Err() != nil {
		err = context.Cause(c.Context())
	}
	kind := interlock.Definite
	if because != nil {
		if errors.Is(because, interlock.ErrUncertain) {
			kind = interlock.Uncertain
		}
		if !errors.Is(because, err) {
			because = fmt.Errorf("%w: %w", err, because)
		}
		err = because
	}
	return &interlock.Error{Op: "run transaction", Name: resource, Kind: kind, Err: err}
}

// withClaimEnd adds to err that the claim has ended, if it has: then a retry with it is useless,
// whatever err says. It leaves a guard's rejection unchanged.
func withClaimEnd(c interlock.Claim, resource string, err error) error {
	if c.Valid() || errors.Is(err, interlock.ErrStaleToken) || errors.Is(err, interlock.ErrImplausibleToken) {
		return err
	}
	return claimEnded(c, resource, err)
}
