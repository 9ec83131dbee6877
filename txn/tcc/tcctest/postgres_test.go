package tcctest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// stand is a participant on a real database, with a row for each item.
type stand struct {
	db   *databases.DB
	item string
}

const (
	holding   = `update item set free = free - $1, held = held + $1 where name = $2 and free >= $1`
	selling   = `update item set held = held - $1, sold = sold + $1 where name = $2`
	releasing = `update item set held = held - $1, free = free + $1 where name = $2`
)

func (s stand) Try(ctx context.Context, n int, _ time.Time) (string, error) {
	return s.item, guarded(ctx, s.db, holding, s.item, n)
}

func (s stand) Confirm(ctx context.Context, n int, _ string) error {
	return guarded(ctx, s.db, selling, s.item, n)
}

func (s stand) Cancel(ctx context.Context, n int, _ *string) error {
	return guarded(ctx, s.db, releasing, s.item, n)
}

// guarded runs a statement behind a barrier.
func guarded(ctx context.Context, db *databases.DB, query, item string, n int) error {
	do := func(ctx context.Context, tx driver.SQL) (int, error) {
		changed, err := tx.Exec(ctx, query, n, item)
		if err == nil && changed != 1 {
			err = branch.Fail(errBusy)
		}
		return n, err
	}
	t := barrier.Table{Level: driver.ReadCommitted}
	switch branch.From(ctx).Operation {
	case branch.Confirm:
		return barrier.Confirm(ctx, db, t, func(ctx context.Context, tx driver.SQL, _ int) error { _, err := do(ctx, tx); return err })
	case branch.Cancel:
		return barrier.Undo(ctx, db, t, func(ctx context.Context, tx driver.SQL, _ *int) error { _, err := do(ctx, tx); return err })
	}
	_, err := barrier.Do(ctx, db, t, n, do)
	return err
}

// items returns all items.
func items(db *databases.DB) any {
	shown := ""
	err := db.Try(context.Background(), func(ctx context.Context, tx driver.SQL) error {
		shown = ""
		return tx.Query(ctx, `select name, free, held, sold from item order by name`, nil, func(scan func(...any) error) error {
			var name string
			var free, held, sold int64
			err := scan(&name, &free, &held, &sold)
			shown += fmt.Sprintf("%s: %d free, %d held, %d sold\n", name, free, held, sold)
			return err
		})
	})
	if err != nil {
		return err.Error()
	}
	return shown
}

// TestPostgres: participants on a real database behind barriers, and holds that expire, in real time.
func TestPostgres(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	t.Run("guarded", func(t *testing.T) {
		t.Parallel()
		found, runs := explored(t, stands(t, server))
		for _, f := range found {
			t.Error(f)
		}
		if t.Log(runs, "runs"); runs < 65 {
			t.Errorf("only %d runs", runs)
		}
	})
	t.Run("expiry", func(t *testing.T) {
		t.Parallel()
		expiry(t, server)
	})
}

// stands returns scenes of a transaction at two stands.
func stands(t *testing.T, server *testbed.Server) func() Scene {
	t.Helper()
	db := databases.Open(t, server, databases.Pgx)
	db.Do(t, barrier.Table{}.Create)
	db.Exec(t, `create table item (name varchar(20) primary key, free bigint, held bigint, sold bigint, check (free >= 0))`)
	return func() Scene {
		db.Exec(t, `delete from interlock_barrier`, `delete from item`, `insert into item values ('rooms', 2, 0, 0), ('seats', 9, 0, 0)`)
		s := Scene{Snapshot: func() any { return items(db) }, RealTime: true, Limit: time.Minute}
		each(&s, map[string]tcc.Resource[int, string]{"rooms": stand{db, "rooms"}, "seats": stand{db, "seats"}})
		s.Invariant = func() error {
			return db.Try(context.Background(), func(ctx context.Context, tx driver.SQL) error {
				n, err := databases.Value[int64](ctx, tx, `select free + held + sold from item where name = 'rooms'`)
				if err == nil && n != 2 {
					err = fmt.Errorf("there are %d rooms in all", n)
				}
				return err
			})
		}
		return s
	}
}

// expiry plays scenarios as long as a hold: a sweep by [tcc.Holds] releases undecided holds and keeps those
// to be confirmed.
func expiry(t *testing.T, server *testbed.Server) {
	t.Helper()
	db := databases.Open(t, server, databases.Pgx)
	h := tcc.Holds[driver.SQL]{DB: db}
	db.Do(t, h.Table.Create)
	e := newExplorer(t, func() Scene {
		db.Exec(t, `delete from interlock_tcc`, `delete from interlock_tcc_hold`)
		db.Do(t, func(ctx context.Context, tx driver.SQL) error { return h.Table.Set(ctx, tx, "room", 2) })
		s := Scene{RealTime: true, Limit: time.Minute, Options: &tcc.Options{Hold: 3 * time.Second, Retry: tcc.Policy{Max: time.Second}}}
		s.Sweep = func(ctx context.Context, ask tcc.Ask) error { _, err := h.Sweep(ctx, ask, 10); return err }
		rooms := Define(&s, "rooms", h.Take())
		s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
			_, err := m.Run(ctx, "stay", id, rooms.Try(tcc.Want{Item: "room", N: 1}))
			return err
		}
		s.Snapshot = func() any {
			var got tcc.Level
			err := db.Try(context.Background(), func(ctx context.Context, tx driver.SQL) (err error) {
				got, err = h.Table.Show(ctx, tx, "room")
				return err
			})
			return fmt.Sprintf("%+v %v", got, err)
		}
		return s
	})
	over, err := e.withoutFaults()
	ok(t, err)
	abandoned := scenario{Words: "there is no other fault", Kind: OutcomeDiffers, Crash: 3, Abandon: true} // before it decides
	if ok(t, e.First(lateConfirm(), abandoned)); over || len(e.Found) > 0 {
		t.Errorf("found %q", e.Found)
	}
}
