package backend

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/guard/fence"
)

// GuardOptions selects a guard of a backend.
type GuardOptions struct {
	Prefix string // etcd: the prefix of the fence's keys
	Table  string // databases: the guard table; empty means interlock_fence
}

// Guard raises, lists and corrects the marks of resources.
type Guard = driver.Fence

// A Lister is a Guard that can list resources with a mark at a cost by their number.
type Lister interface {
	// Resources lists at most limit resources: first those with the prefix, then perhaps
	// others.
	Resources(ctx context.Context, prefix string, limit int) ([]string, error)
}

var (
	_ Lister = (*table)(nil)
	_ Lister = (*etcd.Fence)(nil)
)

// Guard connects to the guard of a backend; disconnect closes it. The context bounds the
// opening only.
func (t Target) Guard(ctx context.Context, o GuardOptions) (g Guard, disconnect func(), err error) {
	if !t.Has(backend.Guards | backend.Tables) {
		return nil, nil, &URLError{Reason: t.Kind() + " has no guards; use an etcd://, redis://, postgres:// or mysql:// URL"}
	}
	b, err := t.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	if f, ok := b.Fence(o.Prefix); ok {
		return f, closing(b), nil
	}
	db, _ := b.SQL()
	return &table{&Database{db: db}, fence.Table{Name: o.Table}}, closing(b), nil
}

// table is a guard table in a database.
type table struct {
	db    *Database
	fence fence.Table
}

func (t *table) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	if len(writes) > 0 {
		return &interlock.Error{Op: "enter", Name: r.Resource, Kind: interlock.Definite,
			Err: errors.New("keys are written by etcd and Redis; a guard table goes with statements in your own transaction")}
	}
	marks := t.fence
	marks.Strict = r.Strict
	return t.db.In(ctx, func(tx driver.SQL) error { return marks.Enter(ctx, tx, r.Resource, r.Token, r.Source) })
}

func (t *table) Mark(ctx context.Context, resource string) (driver.Mark, error) {
	return in(ctx, t.db, func(tx driver.SQL) (driver.Mark, error) { return t.fence.Show(ctx, tx, resource) })
}

func (t *table) Resources(ctx context.Context, prefix string, limit int) ([]string, error) {
	return in(ctx, t.db, func(tx driver.SQL) ([]string, error) { return t.fence.Resources(ctx, tx, prefix, limit) })
}

func (t *table) Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	return in(ctx, t.db, func(tx driver.SQL) (driver.Mark, error) { return t.fence.Rebase(ctx, tx, resource, to, reason, by) })
}
