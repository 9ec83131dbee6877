package journal

import (
	"context"
	"errors"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

// ErrNoTables means that the database has no tables of the name given to [FindStore].
var ErrNoTables = errors.New("the journal does not exist")

// DefaultName is the default name of a journal's tables.
const DefaultName = "interlock_journal"

// OpenStore opens the store of a journal on a backend, for [New]: keys below the prefix name in
// etcd, the journal of that name in memory, tables whose names begin with name in a database
// ([NewTable]). Empty means each backend's default. It creates missing tables; a user without the
// right to do so can use tables that an administrator has created. A backend without journals is
// rejected: see [CheckURL]. The backend closes what it opens.
func OpenStore(ctx context.Context, b *backend.Backend, name string) (driver.Journal, error) {
	return store(ctx, b, name, func(ctx context.Context, db driver.BeginnerAt[driver.SQL], t *Table[driver.SQL]) error {
		err := driver.Create(ctx, db, t)
		if err != nil && t.exists(ctx) == nil {
			return nil // an administrator has created them, for a user who may not
		}
		return err
	})
}

// FindStore is [OpenStore] for a journal that exists: it creates nothing. If a database has no
// tables of the name the error wraps [ErrNoTables].
func FindStore(ctx context.Context, b *backend.Backend, name string) (driver.Journal, error) {
	return store(ctx, b, name, func(ctx context.Context, _ driver.BeginnerAt[driver.SQL], t *Table[driver.SQL]) error {
		return t.exists(ctx)
	})
}

// CheckURL rejects, without connecting, a backend that cannot store a journal. Errors are
// *backend.URLError.
func CheckURL(u *backend.URL) error {
	if u.Has(backend.Journals | backend.Tables) {
		return nil
	}
	return &backend.URLError{Reason: u.Kind() + " cannot store a journal; use an etcd://, postgres:// or mysql:// URL"}
}

func store(ctx context.Context, b *backend.Backend, name string,
	prepare func(context.Context, driver.BeginnerAt[driver.SQL], *Table[driver.SQL]) error) (driver.Journal, error) {
	if err := CheckURL(b.URL()); err != nil {
		return nil, err
	}
	if j, ok, err := b.Journal(ctx, name); ok || err != nil {
		return j, err
	}
	db, _ := b.SQL()
	t := NewTable(db, name)
	if err := prepare(ctx, db, t); err != nil {
		return nil, err
	}
	return t, nil
}

// exists returns an error that wraps ErrNoTables if the tables are missing.
func (t *Table[T]) exists(ctx context.Context) error {
	_, err := t.Heads(ctx, "", 1)
	var state interface{ SQLState() string }
	if errors.As(err, &state) && slices.Contains([]string{"42P01", "42S02"}, state.SQLState()) { // PostgreSQL, MariaDB
		return &interlock.Error{Op: "open journal", Kind: interlock.Definite, Err: ErrNoTables}
	}
	return err
}
