package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/outbox"
)

// A Database is a backend that speaks SQL.
type Database struct {
	db driver.BeginnerAt[driver.SQL]
	// Close ends the connections.
	Close func()
}

// Database connects to a database; one of another kind is refused with a [*URLError].
// The context bounds the opening only.
func (t Target) Database(ctx context.Context) (*Database, error) {
	if !t.Has(backend.Tables) {
		return nil, &URLError{Reason: t.Kind() + " is no database; use a postgres:// or mysql:// URL"}
	}
	b, err := t.Open(ctx)
	if err != nil {
		return nil, err
	}
	db, _ := b.SQL()
	return &Database{db, closing(b)}, nil
}

// In runs something in a transaction of its own, and commits it if that returns nil.
func (d *Database) In(ctx context.Context, do func(driver.SQL) error) error {
	tx, err := d.db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error says more
		return err
	}
	return tx.Commit(ctx)
}

// in is [Database.In] for something that returns a value.
func in[T any](ctx context.Context, d *Database, do func(driver.SQL) (T, error)) (v T, err error) {
	err = d.In(ctx, func(tx driver.SQL) error {
		v, err = do(tx)
		return err
	})
	return v, err
}

// SetSlices is [outbox.SetSlices].
func (d *Database) SetSlices(ctx context.Context, t outbox.Table, c outbox.SliceChange) (moved int64, err error) {
	return outbox.SetSlices(ctx, d.db, t, c)
}
