package sequence

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// State is the state of a key.
type State struct {
	Position       // all events up to here are delivered, or recorded as missing
	Holes    int64 // open holes
}

// A Move takes a key from one position to a later one.
type Move struct {
	Stream, Key string
	From, To    Position
	// Hole is recorded as open in the same step; it ends at To. nil means none.
	Hole *Hole
}

// Store keeps the position and the holes of each key of a stream, durably. T is passed to the handler:
// the transaction that moves the key, with [InTx], so that effects in the same database happen exactly
// once; nothing, with [Memory]. A Store is safe for concurrent use, also by several processes, and does
// not retry.
type Store[T any] interface {
	// Load returns the state of a key; an unknown key has the zero State.
	Load(ctx context.Context, stream, key string) (State, error)
	// Advance makes a move and runs fn in one atomic step. After an error nothing is done, unless it
	// is Uncertain. If the key is not at m.From, it returns [ErrConflict] and does not run fn. No
	// other call moves the key until it returns.
	Advance(ctx context.Context, m Move, fn func(ctx context.Context, in T) error) error
	// Fill removes a position from its open hole and runs fn, in one atomic step, and returns the new
	// State. If there is no such hole, it returns [ErrNoHole] and does not run fn.
	Fill(ctx context.Context, stream, key string, at Position, fn func(ctx context.Context, in T) error) (State, error)
}

// maxStream is the longest name of a stream, in bytes.
const maxStream = 255

func checkStream(op, stream string) error {
	return driver.CheckName(op, "a stream", stream, maxStream)
}

func checkNames(op, stream, key string) error {
	if err := checkStream(op, stream); err != nil {
		return err
	}
	return driver.CheckName(op, "a key", key, driver.MaxName)
}

// conflict returns the ErrConflict of a key.
func conflict(key string, from Position) error {
	return &interlock.Error{Op: "advance", Name: key, Kind: interlock.Retryable, Err: fmt.Errorf("it is not at %v: %w", from, ErrConflict)}
}

// noHole returns the ErrNoHole of a key.
func noHole(key string, at Position) error {
	return &interlock.Error{Op: "fill", Name: key, Kind: interlock.Definite, Err: fmt.Errorf("%v: %w", at, ErrNoHole)}
}

// InTx returns a Store that keeps positions and holes in a table. Handlers get the transaction that
// moves the key: their effects in it happen exactly once, over crashes and with several processes.
// Other effects happen at least once.
func InTx[T any](db driver.Beginner[T], t Table) Store[T] { return inTx[T]{db, t} }

type inTx[T any] struct {
	db    driver.Beginner[T]
	table Table
}

// Load reads the state and rolls back.
func (s inTx[T]) Load(ctx context.Context, stream, key string) (state State, err error) {
	err = s.run(ctx, key, func(tx driver.Tx[T]) error {
		if state, err = s.table.Position(ctx, tx, stream, key); err != nil {
			return err
		}
		return transact.ErrNothing
	})
	return state, err
}

func (s inTx[T]) Advance(ctx context.Context, m Move, fn func(ctx context.Context, in T) error) error {
	return s.run(ctx, m.Key, func(tx driver.Tx[T]) error {
		if err := s.table.advance(ctx, tx, m); err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native()))
	})
}

func (s inTx[T]) Fill(ctx context.Context, stream, key string, at Position, fn func(ctx context.Context, in T) error) (state State, err error) {
	err = s.run(ctx, key, func(tx driver.Tx[T]) error {
		if state, err = s.table.fill(ctx, tx, stream, key, at); err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native()))
	})
	return state, err
}

// run runs fn in a transaction, and commits it if fn returns nil.
func (s inTx[T]) run(ctx context.Context, key string, fn func(tx driver.Tx[T]) error) error {
	return transact.Do(ctx, s.db.Begin, key, fn)
}
