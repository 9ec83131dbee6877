package backend

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
)

// A Database is a backend that speaks SQL.
type Database struct {
	// In runs something in a transaction of its own, and commits it if that returns
	// nil.
	In func(context.Context, func(driver.SQL) error) error
	// SetSlices is [outbox.SetSlices].
	SetSlices func(context.Context, outbox.Table, outbox.SliceChange) (moved int64, err error)
	// Close ends the connections.
	Close func()
}

// Database connects to a database; one of another kind is refused with a [*URLError].
// The context bounds the opening only.
func (t Target) Database(ctx context.Context) (*Database, error) {
	switch t.kind {
	case "postgres":
		pool, err := t.dialPostgres(ctx)
		if err != nil {
			return nil, err
		}
		return &Database{inPostgres(pool), slicesOf(postgres.Pool(pool)), pool.Close}, nil
	case "mysql":
		db, err := t.dialMySQL()
		if err != nil {
			return nil, err
		}
		return &Database{inMySQL(db), slicesOf(mysql.DB(db)), func() { _ = db.Close() }}, nil
	}
	return nil, &URLError{t.kind + " is no database; use a postgres:// or mysql:// URL"}
}

func inPostgres(pool *pgxpool.Pool) func(context.Context, func(driver.SQL) error) error {
	return func(ctx context.Context, do func(driver.SQL) error) error {
		return onOneLine(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return do(postgres.Tx(tx)) }))
	}
}

func inMySQL(db *sql.DB) func(context.Context, func(driver.SQL) error) error {
	return func(ctx context.Context, do func(driver.SQL) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := do(mysql.Tx(tx)); err != nil {
			_ = tx.Rollback() // the first error says more
			return err
		}
		return tx.Commit()
	}
}

func slicesOf[T any](db driver.Beginner[T]) func(context.Context, outbox.Table, outbox.SliceChange) (int64, error) {
	return func(ctx context.Context, t outbox.Table, c outbox.SliceChange) (int64, error) {
		return outbox.SetSlices(ctx, db, t, c)
	}
}
