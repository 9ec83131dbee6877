package tcctest

import (
	"context"
	"fmt"
	"slices"
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
	// once runs a statement, once for the call of ctx, or at each call.
	once func(ctx context.Context, db *databases.DB, query, item string, n int) error
}

const (
	holding   = `update item set free = free - $1, held = held + $1 where name = $2 and free >= $1`
	selling   = `update item set held = held - $1, sold = sold + $1 where name = $2`
	releasing = `update item set held = held - $1, free = free + $1 where name = $2`
)

func (s stand) Try(ctx context.Context, n int, _ time.Time) (string, error) {
	return s.item, s.once(ctx, s.db, holding, s.item, n)
}

func (s stand) Confirm(ctx context.Context, n int, _ string) error {
	return s.once(ctx, s.db, selling, s.item, n)
}

func (s stand) Cancel(ctx context.Context, n int, _ *string) error {
	return s.once(ctx, s.db, releasing, s.item, n)
}

// guarded runs it behind a barrier.
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

// unguarded runs it at each call.
func unguarded(ctx context.Context, db *databases.DB, query, item string, n int) error {
	return db.Try(ctx, func(ctx context.Context, tx driver.SQL) error {
		changed, err := tx.Exec(ctx, query, n, item)
		if err == nil && changed != 1 {
			err = branch.Fail(errBusy)
		}
		return err
	})
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

// TestPostgres: participants on a real database have the same findings, in real time.
func TestPostgres(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	t.Run("guarded", func(t *testing.T) {
		t.Parallel()
		found, runs := explored(t, stands(t, server, guarded))
		for _, f := range found {
			t.Error(f)
		}
		if t.Log(runs, "runs"); runs < 65 {
			t.Errorf("only %d runs", runs)
		}
	})
	t.Run("unguarded", func(t *testing.T) {
		t.Parallel()
		found, _ := explored(t, stands(t, server, unguarded))
		var got []string
		for _, f := range found {
			got = append(got, fmt.Sprintf("%s:%s", f.Kind, f.Branch))
			t.Log(f)
		}
		var want []string
		for _, b := range []string{"rooms", "seats"} {
			for _, k := range []Kind{TryNotIdempotent, ConfirmNotIdempotent, EmptyCancel, CancelNotIdempotent, LateTryAccepted} {
				want = append(want, fmt.Sprintf("%s:%s", k, b))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q\nwant %q", got, want)
		}
	})
	t.Run("expiry", func(t *testing.T) {
		t.Parallel()
		expiry(t, server)
	})
}

// stands returns scenes of a transaction at two stands.
func stands(t *testing.T, server *testbed.Server, once func(ctx context.Context, db *databases.DB, query, item string, n int) error) func() Scene {
	t.Helper()
	db := databases.Open(t, server, databases.Pgx)
	db.Do(t, barrier.Table{}.Create)
	db.Exec(t, `create table item (name varchar(20) primary key, free bigint, held bigint, sold bigint, check (free >= 0))`)
	return func() Scene {
		db.Exec(t, `delete from interlock_barrier`, `delete from item`, `insert into item values ('rooms', 2, 0, 0), ('seats', 9, 0, 0)`)
		s := Scene{Snapshot: func() any { return items(db) }, RealTime: true, Limit: time.Minute}
		each(&s, map[string]tcc.Resource[int, string]{"rooms": stand{db, "rooms", once}, "seats": stand{db, "seats", once}})
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

// expiry plays scenarios as long as a hold: a sweep by [tcc.Holds] releases undecided holds
// and keeps those to be confirmed, and one that uses only the clock has a finding.
func expiry(t *testing.T, server *testbed.Server) {
	t.Helper()
	for name, c := range map[string]struct {
		sweep func(h tcc.Holds[driver.SQL]) func(ctx context.Context, ask tcc.Ask) error
		want  Kind
	}{
		"asks": {func(h tcc.Holds[driver.SQL]) func(ctx context.Context, ask tcc.Ask) error {
			return func(ctx context.Context, ask tcc.Ask) error { _, err := h.Sweep(ctx, ask, 10); return err }
		}, ""},
		"by the clock": {func(h tcc.Holds[driver.SQL]) func(ctx context.Context, ask tcc.Ask) error {
			return func(ctx context.Context, _ tcc.Ask) error {
				_, err := h.Sweep(ctx, func(context.Context, string, string) (tcc.Decision, error) { return tcc.Cancel, nil }, 10)
				return err
			}
		}, FreedUnasked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := databases.Open(t, server, databases.Pgx)
			h := tcc.Holds[driver.SQL]{DB: db}
			db.Do(t, h.Table.Create)
			e := newExplorer(t, func() Scene {
				db.Exec(t, `delete from interlock_tcc`, `delete from interlock_tcc_hold`)
				db.Do(t, func(ctx context.Context, tx driver.SQL) error { return h.Table.Set(ctx, tx, "room", 2) })
				s := Scene{Sweep: c.sweep(h), RealTime: true, Limit: time.Minute, Options: &tcc.Options{Hold: 3 * time.Second, Retry: tcc.Policy{Max: time.Second}}}
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
			if ok(t, e.First(lateConfirm())); len(e.Found) == 0 {
				ok(t, e.First(abandoned))
			}
			if kinds := slices.Collect(func(yield func(Kind) bool) {
				for _, f := range e.Found {
					if t.Log(f); !yield(f.Kind) {
						return
					}
				}
			}); over || c.want == "" && len(kinds) > 0 || c.want != "" && !slices.Equal(kinds, []Kind{c.want}) {
				t.Errorf("found %q, want %q", kinds, c.want)
			}
		})
	}
}
