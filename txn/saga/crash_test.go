package saga

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// effect is a target in the database: a row for each key, in its own transaction.
func effect(db driver.Beginner[driver.SQL], at *crash.Points) func(ctx context.Context) error {
	return func(ctx context.Context) (err error) {
		at.Pass()
		defer at.Pass()
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		key := From(ctx).Key() // of letters and slashes, here
		if _, err := tx.Exec(ctx, fmt.Sprintf(`insert into effect (name) select '%s' from one where not exists (select 1 from effect where name = '%s')`, key, key)); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
}

// engine serves all shards until the saga has ended.
func engine(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	j, err := journal.New(crash.Journal(journal.NewTable(db, ""), at), &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	apply := effect(db, at)
	undo := func(ctx context.Context, _ string, _ *string) error { return apply(ctx) }
	act := func(ctx context.Context, input string) (string, error) { return input, apply(ctx) }
	d := Define("order", Step("a", act).Undo("una", undo), Step("b", act).Undo("unb", undo),
		Step("c", func(ctx context.Context, _ string) (string, error) { at.Pass(); return "", Fail(errSeat) }).Undo("unc", undo),
		Step("p", act).Pivot())
	e, err := build(j, &settings{}, d)
	if err != nil {
		return err
	}
	defer txntest.Run(ctx, e.coordinator.Run)()
	if _, err := d.Do(ctx, e, "1", "in"); interlock.Kind(err) != interlock.Definite {
		return fmt.Errorf("the saga ended with %w", err)
	}
	return nil
}

// TestKilled: if a process is killed between any two of its writes, the next one undoes
// its saga, each effect once, in reverse order.
func TestKilled(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		crash.Share(t, "engine", crash.Part(t), 2, func(tb testing.TB) crash.Scene { return scene(tb, open(tb)) })
	}, databases.Pgx, databases.Maria)
}

// TestAsleep pauses a process anywhere until another one has completed the saga: when it
// wakes up, with an apparently valid claim, it appends nothing and has no effect.
func TestAsleep(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		crash.Asleep(t, "engine", "engine", 4, func(tb testing.TB) crash.Sleeper {
			db := open(tb)
			db.Exec(tb, crash.EndIdle)
			return crash.Sleeper{Scene: scene(tb, db), Left: func(tb testing.TB) string {
				tb.Helper()
				judgeKilled(tb, db)
				return strings.Join(txntest.Records(tb, journal.NewTable(db, ""), "1"), " ")
			}}
		})
	}, databases.Pgx)
}

// scene returns a database for one saga, and checks its final state.
func scene(tb testing.TB, db *databases.DB) crash.Scene {
	tb.Helper()
	db.Do(tb, journal.NewTable(db, "").Create)
	serial := "bigint auto_increment primary key"
	if db.Dialect == driver.Postgres {
		serial = "bigserial primary key"
	}
	db.Exec(tb, `create table effect (id `+serial+`, name varchar(100))`)
	db.Exec(tb, `create table one (id bigint)`)
	db.Exec(tb, `insert into one values (1)`)
	return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
		tb.Helper()
		judgeKilled(tb, db)
	}}
}

func judgeKilled(tb testing.TB, db *databases.DB) {
	tb.Helper()
	var effects []string
	db.Do(tb, func(ctx context.Context, tx driver.SQL) error {
		return tx.Query(ctx, `select name from effect order by id`, nil, func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			if name != "1/c/undo" { // the step's outcome is unknown if its process was killed
				effects = append(effects, name)
			}
			return err
		})
	})
	if want := []string{"1/a/do", "1/b/do", "1/b/undo", "1/a/undo"}; !slices.Equal(effects, want) {
		tb.Errorf("effects %v", effects)
	}
	table := journal.NewTable(db, "")
	head, _, err := table.Read(tb.Context(), "1", 0)
	if err != nil || head.Ended.IsZero() {
		tb.Errorf("%+v, %v", head, err)
	}
	decided := strings.Count(strings.Join(txntest.Records(tb, table, "1"), " "), recordDecide+":")
	if unscheduled(tb, table); decided != 1 {
		tb.Errorf("%d decisions", decided)
	}
}
