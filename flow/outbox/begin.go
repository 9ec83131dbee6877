package outbox

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Tx runs fn in a transaction of db, commits it if fn returns nil, and then notifies
// the notifier, so that a relay that listens to it looks at once. notifier may be nil. It
// returns the error of fn after a rollback, with a kind if it is one of the
// database; that of the commit is Uncertain if it may have been done. Nothing is
// retried. A rollback ignores the cancellation of ctx, and is also done if fn panics.
func Tx[T any](ctx context.Context, db driver.Beginner[T], notifier driver.Notifier, fn func(ctx context.Context, tx T) error) error {
	worked := false
	err := transact.Do(ctx, db.Begin, "", func(tx driver.Tx[T]) error {
		err := tx.Classify(fn(ctx, tx.Native()))
		worked = err == nil
		return err
	})
	if notifier != nil && worked && (err == nil || interlock.Kind(err) == interlock.Uncertain) {
		notifier.Notify()
	}
	return err
}

// begins lends the transactions of a database as SQL, whatever the user's type of
// them is.
type begins[T any] struct{ db driver.Beginner[T] }

// Begin asks for READ COMMITTED where a level can be asked for: reads must not wait
// for those who write, as they do on a MariaDB whose sessions are SERIALIZABLE.
func (b begins[T]) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := transact.Preferably(b.db, driver.ReadCommitted)(ctx)
	if err != nil {
		return nil, err
	}
	return lent[T]{tx}, nil
}

type lent[T any] struct{ driver.Tx[T] }

func (l lent[T]) Native() driver.SQL { return l.Tx }
