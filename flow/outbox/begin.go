package outbox

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx runs fn in a transaction of db, commits it if fn returns nil, and then notifies, so that a
// relay that listens looks for messages at once. notifier may be nil. Tx returns the error of fn
// after a rollback, with a kind if it is an error of the database. The error of a commit that may
// have been done is Uncertain. Tx does not retry. A rollback ignores the end of ctx, and is done even
// if fn panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	return transact.Notify(ctx, db, notifier, fn)
}

// untyped begins transactions of any type as SQL.
type untyped[T any] struct{ db driver.Beginner[T] }

// Begin begins a transaction, of READ COMMITTED if db can choose a level: reads must not wait for
// writers, as they do on a MariaDB whose sessions are SERIALIZABLE.
func (b untyped[T]) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := transact.Preferably(b.db, driver.ReadCommitted)(ctx)
	if err != nil {
		return nil, err
	}
	return untypedTx[T]{tx}, nil
}

type untypedTx[T any] struct{ driver.Tx[T] }

func (t untypedTx[T]) Native() driver.SQL { return t.Tx }
