package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Journal connects to a journal of transactions; a backend that keeps none is refused
// with a [*URLError]. name is that of its tables in a database, or the prefix of its
// keys in etcd; empty is the default of each. The tables are created unless they exist.
// The context bounds the opening only.
func (t Target) Journal(ctx context.Context, name string) (store driver.Journal, disconnect func(), err error) {
	return t.journal(ctx, name, journal.OpenStore)
}

// JournalThere is [Target.Journal] for commands that only look, or operate on what exists:
// it creates nothing, and returns [journal.ErrNoTables] where a database has no such tables.
// In etcd a journal of which nothing was written is like any other.
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
