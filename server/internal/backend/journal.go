package backend

import (
	"context"
	"errors"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Journal connects to a journal of transactions; a backend that keeps none is refused
// with a [*URLError]. name is that of its tables in a database, or the prefix of its
// keys in etcd; empty is the default of each. The tables are made unless they exist.
// The context bounds the opening only.
func (t Target) Journal(ctx context.Context, name string) (store driver.Journal, disconnect func(), err error) {
	return t.journal(ctx, name, true)
}

// JournalThere is [Target.Journal] for who only looks, or helps what is there: it makes
// nothing, and where a database has no such tables, that is its [ErrNoJournal]. In etcd
// a journal of which nothing was written is as any other.
func (t Target) JournalThere(ctx context.Context, name string) (store driver.Journal, disconnect func(), err error) {
	return t.journal(ctx, name, false)
}

// ErrNoJournal: a database has no tables of the journal's name.
var ErrNoJournal = errors.New("there is no such journal")

func (t Target) journal(ctx context.Context, name string, begins bool) (store driver.Journal, disconnect func(), err error) {
	switch t.kind {
	case "etcd":
		client, err := t.dialEtcd(ctx)
		if err != nil {
			return nil, nil, err
		}
		return etcd.NewJournal(client, name), func() { _ = client.Close() }, nil
	case "postgres":
		pool, err := t.dialPostgres(ctx)
		if err != nil {
			return nil, nil, err
		}
		store, err := journalTables(ctx, postgres.Pool(pool), name, begins)
		if err != nil {
			pool.Close()
			return nil, nil, onOneLine(err)
		}
		return store, pool.Close, nil
	case "mysql":
		db, err := t.dialMySQL()
		if err != nil {
			return nil, nil, err
		}
		store, err := journalTables(ctx, mysql.DB(db), name, begins)
		if err != nil {
			_ = db.Close() // the first error says more
			return nil, nil, err
		}
		return store, func() { _ = db.Close() }, nil
	}
	return nil, nil, &URLError{t.kind + " keeps no journal; use an etcd://, postgres:// or mysql:// URL"}
}

// journalTables is a journal whose tables exist.
func journalTables[T any](ctx context.Context, db driver.BeginnerAt[T], name string, begins bool) (driver.Journal, error) {
	t := journal.NewTable(db, name)
	if !begins {
		return t, there(ctx, t)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after the commit
	if err := t.Create(ctx, tx); err != nil {
		_ = tx.Rollback(ctx) // its connection may be the only one
		if Forbidden(err) && there(ctx, t) == nil {
			return t, nil // an administrator has created the tables
		}
		return nil, err
	}
	return t, tx.Commit(ctx)
}

// there reads something, and says what it means that the table is unknown.
func there(ctx context.Context, store driver.Journal) error {
	_, err := store.Heads(ctx, "", 1)
	var pg interface{ SQLState() string }
	var my *client.MySQLError
	if errors.As(err, &pg) && pg.SQLState() == "42P01" || errors.As(err, &my) && my.Number == 1146 {
		return &interlock.Error{Op: "open journal", Kind: interlock.Definite, Err: ErrNoJournal}
	}
	return err
}
