package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// Untyped returns db for code that uses SQL only, whatever its type of transaction:
// Native of a transaction is its SQL.
func Untyped[T any](db driver.BeginnerAt[T]) driver.BeginnerAt[driver.SQL] {
	if a, ok := db.(driver.Autocommitter); ok {
		return autocommitter[T]{untyped[T]{db}, a}
	}
	if a, ok := db.(driver.Atomic); ok {
		return atomic[T]{untyped[T]{db}, a}
	}
	return untyped[T]{db}
}

type atomic[T any] struct {
	untyped[T]
	driver.Atomic
}

type autocommitter[T any] struct {
	untyped[T]
	driver.Autocommitter
}

type untyped[T any] struct{ db driver.BeginnerAt[T] }

func (u untyped[T]) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return u.BeginAt(ctx, driver.SessionIsolation)
}

func (u untyped[T]) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := u.db.BeginAt(ctx, level)
	if err != nil {
		return nil, err
	}
	return untypedTx[T]{tx}, nil
}

type untypedTx[T any] struct{ driver.Tx[T] }

func (t untypedTx[T]) Native() driver.SQL { return t.Tx }
