package backend

import (
	"cmp"
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Database is a backend that speaks SQL.
type Database struct {
	db driver.BeginnerAt[driver.SQL]
	// Close ends the connections.
	Close func()
}

// Database connects to a database; another kind of backend is a [*URLError]. The
// context bounds the opening only.
func (t Target) Database(ctx context.Context) (*Database, error) {
	if !t.Has(backend.Tables) {
		return nil, &URLError{Reason: t.Kind() + " has no SQL tables; use a postgres:// or mysql:// URL"}
	}
	b, err := t.Open(ctx)
	if err != nil {
		return nil, err
	}
	db, _ := b.SQL()
	return &Database{db, closing(b)}, nil
}

// In runs do in a transaction, and commits it if do returns nil.
func (d *Database) In(ctx context.Context, do func(driver.SQL) error) error {
	tx, err := d.db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the first error matters
		return uncommitted(err)
	}
	return tx.Commit(ctx)
}

// uncommitted makes an error of unknown outcome Retryable: nothing is done without the commit.
func uncommitted(err error) error {
	var e *interlock.Error
	if !errors.As(err, &e) || e.Kind != interlock.Uncertain {
		return err
	}
	known := *e
	known.Kind = interlock.Retryable
	return &known
}

// in is [Database.In] for something that returns a value.
func in[T any](ctx context.Context, d *Database, do func(driver.SQL) (T, error)) (v T, err error) {
	err = d.In(ctx, func(tx driver.SQL) error {
		v, err = do(tx)
		return err
	})
	return v, err
}

// SetSlices calls [outbox.SetSlices].
func (d *Database) SetSlices(ctx context.Context, t outbox.Table, c outbox.SliceChange) (moved int64, err error) {
	return outbox.SetSlices(ctx, d.db, t, c)
}

// Journal connects to a journal of transactions; a backend without one is a [*URLError].
// name is the name of its tables in a database, or the prefix of its keys in etcd; empty
// means the default. It creates missing tables. The context bounds the opening only.
func (t Target) Journal(ctx context.Context, name string) (store driver.Journal, disconnect func(), err error) {
	return t.journal(ctx, name, journal.OpenStore)
}

// JournalThere connects like [Target.Journal] to an existing journal: it creates nothing,
// and returns [journal.ErrNoTables] if a database lacks the tables. In etcd an empty journal
// is no error.
func (t Target) JournalThere(ctx context.Context, name string) (store driver.Journal, disconnect func(), err error) {
	return t.journal(ctx, name, journal.FindStore)
}

func (t Target) journal(ctx context.Context, name string,
	find func(context.Context, *backend.Backend, string) (driver.Journal, error)) (driver.Journal, func(), error) {
	if err := journal.CheckURL(t.URL); err != nil {
		return nil, nil, err
	}
	b, store, err := open(ctx, t, func(b *backend.Backend) (driver.Journal, error) { return find(ctx, b, name) })
	return store, closing(b), err
}

// Limits connects to the rate limits of a backend, in a database to those of a table, which it
// does not create. disconnect closes it. A backend without limits is a [*URLError]. The context
// bounds the opening only.
func (t Target) Limits(ctx context.Context, table limit.Table) (l driver.LimitInspector, disconnect func(), err error) {
	refusal := &URLError{Reason: t.Kind() + " keeps no rate limits; use a redis://, postgres:// or mysql:// URL"}
	if !t.Has(backend.Tables) && t.Kind() != "redis" {
		return nil, nil, refusal
	}
	b, l, err := open(ctx, t, func(b *backend.Backend) (driver.LimitInspector, error) {
		if db, ok := b.SQL(); ok {
			table.Prefix = cmp.Or(table.Prefix, t.Setting("prefix"))
			return limit.FromTable(db, table).(driver.LimitInspector), nil
		}
		if l, ok := b.Limiter(table.Prefix); ok {
			return l.(driver.LimitInspector), nil
		}
		return nil, refusal
	})
	return l, closing(b), err
}
