package databases

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// lifted begins transactions that lend themselves, whatever T is.
type lifted[T any] struct{ db driver.BeginnerAt[T] }

func lift[T any](db driver.BeginnerAt[T]) driver.BeginnerAt[driver.SQL] { return lifted[T]{db} }

func (l lifted[T]) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return l.BeginAt(ctx, driver.SessionIsolation)
}

func (l lifted[T]) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := l.db.BeginAt(ctx, level)
	if err != nil {
		return nil, err
	}
	return liftedTx[T]{tx}, nil
}

type liftedTx[T any] struct{ driver.Tx[T] }

func (t liftedTx[T]) Native() driver.SQL { return t.Tx }
