package sequence

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// InTx keeps positions and holes in a table, and lends a handler the transaction in
// which the key is moved: what it does there happens once, whatever crashes and
// whoever else works on the key. What a handler does elsewhere happens at least
// once.
func InTx[T any](db driver.Beginner[T], t Table) Store[T] { return inTx[T]{db, t} }

type inTx[T any] struct {
	db    driver.Beginner[T]
	table Table
}

// Load commits nothing: what was read is true however the transaction ends.
func (s inTx[T]) Load(ctx context.Context, stream, key string) (state State, err error) {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return state, uncommitted(about("begin", key, err))
	}
	defer func() { _ = tx.Rollback(ctx) }()
	state, err = s.table.Position(ctx, tx, stream, key)
	return state, uncommitted(err)
}

func (s inTx[T]) Advance(ctx context.Context, m Move, fn func(ctx context.Context, in T) error) error {
	return s.run(ctx, m.Key, func(tx driver.Tx[T]) error {
		if err := s.table.advance(ctx, tx, m); err != nil {
			return uncommitted(err)
		}
		return tx.Classify(fn(ctx, tx.Native()))
	})
}

func (s inTx[T]) Fill(ctx context.Context, stream, key string, at Position, fn func(ctx context.Context, in T) error) (state State, err error) {
	err = s.run(ctx, key, func(tx driver.Tx[T]) error {
		if state, err = s.table.fill(ctx, tx, stream, key, at); err != nil {
			return uncommitted(err)
		}
		return tx.Classify(fn(ctx, tx.Native()))
	})
	return state, err
}

// run runs fn in a transaction, and commits it if fn returns nil.
func (s inTx[T]) run(ctx context.Context, key string, fn func(tx driver.Tx[T]) error) error {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return uncommitted(about("begin", key, err))
	}
	sent := false
	defer func() { // also if the handler panics
		if !sent {
			_ = tx.Rollback(ctx) // its own bound; if it fails the connection is closed
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return &interlock.Error{Op: "commit", Name: key, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
	sent = true
	return about("commit", key, tx.Commit(ctx))
}

// uncommitted makes a statement's error of unknown outcome Retryable: what it did does
// not matter in a transaction that is never committed. A handler's error stays as it
// is: it may be of something done elsewhere.
func uncommitted(err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Kind != interlock.Uncertain {
		return err
	}
	return &interlock.Error{Op: e.Op, Driver: e.Driver, Name: e.Name, Kind: interlock.Retryable, Err: e.Err}
}
