package sequence

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

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
