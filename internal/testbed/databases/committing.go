package databases

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Committing begins transactions whose Commit calls Instead with the transaction itself.
type Committing[T any] struct {
	driver.BeginnerAt[T]
	Instead func(ctx context.Context, tx driver.Tx[T]) error
}

// Unanswered commits in db, and drops the reply if lost returns true.
func Unanswered[T any](db driver.BeginnerAt[T], lost func() bool) Committing[T] {
	return Committing[T]{db, func(ctx context.Context, tx driver.Tx[T]) error {
		err := tx.Commit(ctx)
		if err == nil && lost() {
			err = ErrNoReply
		}
		return err
	}}
}

// ErrNoReply is the error of a COMMIT whose reply was lost.
var ErrNoReply = &interlock.Error{Op: "commit", Kind: interlock.Uncertain, Err: errors.New("no reply")}

// Begin begins a transaction.
func (c Committing[T]) Begin(ctx context.Context) (driver.Tx[T], error) {
	tx, err := c.BeginnerAt.Begin(ctx)
	return committingTx[T]{tx, c}, err
}

// BeginAt begins a transaction.
func (c Committing[T]) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[T], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	return committingTx[T]{tx, c}, err
}

type committingTx[T any] struct {
	driver.Tx[T]
	c Committing[T]
}

func (t committingTx[T]) Commit(ctx context.Context) error { return t.c.Instead(ctx, t.Tx) }

// Waiting returns the number of sessions of the database that wait for a lock. MariaDB
// refreshes its list only if it was not read for a tenth of a second. There, a statement
// that takes longer than that counts as waiting.
func (d *DB) Waiting(tb testing.TB) int64 {
	tb.Helper()
	query := `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
	if d.Dialect == driver.MariaDB {
		query = `select count(*) from information_schema.processlist
			where db = database() and id <> connection_id() and command in ('Query', 'Execute') and time_ms > 100`
	}
	return One[int64](tb, d, query)
}
