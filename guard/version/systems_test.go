package version_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testEarlySnapshot: a transaction whose snapshot is older than the last change does not apply an
// older change.
func testEarlySnapshot(w world) {
	refused := func(o version.Outcome, err error) bool { return interlock.Kind(err) == interlock.Retryable }
	settings := map[string]func(version.Outcome, error) bool{`select 1`: refused}
	if w.Dialect == driver.MariaDB {
		settings = map[string]func(version.Outcome, error) bool{
			`set session innodb_snapshot_isolation = off`: func(o version.Outcome, err error) bool { return err == nil && o == version.Stale },
			`set session innodb_snapshot_isolation = on`:  refused,
		}
	}
	for kind, g := range w.guards() {
		for setting, right := range settings {
			id := kind + setting
			w.order(id)
			w.mustApply(g, change(id, 1, ""), version.Applied)
			early := w.Begun(w.T, driver.RepeatableRead)
			_, err := early.Exec(w.Context(), setting)
			ok(w.T, err)
			_, err = databases.Value[int64](w.Context(), early, `select count(*) from orders`)
			ok(w.T, err)
			w.mustApply(g, change(id, 5, ""), version.Applied)
			if o, err := g.Apply(w.Context(), early, change(id, 4, "")); !right(o, err) {
				w.Errorf("%s, %s: %v, %v", kind, setting, o, err)
			}
			ok(w.T, early.Rollback(w.Context()))
		}
	}
}

// testQueryModes: the clients of PostgreSQL send parameters in several ways.
func testQueryModes(w world) {
	if w.Dialect != driver.Postgres {
		return
	}
	guards := w.guards()
	w.accounts()
	w.DB.Exec(w.T, `create table seat (no int primary key, version bigint)`)
	for i, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		db, closed, err := databases.Connect(w.Context(), w.Client, w.URL+"&default_query_exec_mode="+mode)
		ok(w.T, err)
		w.Cleanup(closed)
		by := world{w.T, &databases.DB{BeginnerAt: db}}
		for kind, g := range guards {
			id := fmt.Sprint(kind, i)
			w.order(id)
			by.mustApply(g, change(id, math.MaxInt64-1, `\'"é`), version.Applied)
			by.mustApply(g, change(id, math.MaxInt64-1, `\'"é`), version.Duplicate)
			by.mustApply(g, change(id, math.MaxInt64-2, "z"), version.Stale)
			by.mustApply(g, wins(change(id, 1, "")), version.Applied)
			by.mustApply(g, change(id, math.MaxInt64, ""), version.Terminal)
		}
		w.DB.Exec(w.T, fmt.Sprintf(`insert into seat (no) values (%d)`, i))
		by.mustApply(version.Column{Table: "seat", Key: "no", Version: "version"}, change(fmt.Sprint(i), 3, ""), version.Applied)
		ok(w.T, version.Update(w.Context(), updater(w.T, version.Options{}), db, accounts, "1", func(_ context.Context, a *account) error {
			a.Balance++
			return nil
		}))
		by.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
			_, err := version.Table{}.Purge(ctx, db, time.Hour, 0)
			return err
		})
	}
	if got := w.text(`select concat(balance) from account`); got != "5" {
		w.Errorf("balance %s", got)
	}
}

// testEndedContext: the cause is returned, nothing is done, and nothing is retried.
func testEndedContext(w world) {
	w.accounts()
	cause := errors.New("the caller changed its mind")
	ctx, cancel := context.WithCancelCause(w.Context())
	cancel(cause)
	tx := w.Begun(w.T, driver.SessionIsolation)
	_, err := version.Table{}.Apply(ctx, tx, change("a", 1, ""))
	if !errors.Is(err, cause) {
		w.Errorf("%v is not the cause", err)
	}
	u, n := updater(w.T, version.Options{}), 0
	ctx, cancel = context.WithCancelCause(w.Context())
	err = version.Update(ctx, u, w.DB, accounts, "1", func(_ context.Context, a *account) error {
		n++
		a.Balance++
		cancel(cause)
		return nil
	})
	if got := w.text(`select concat(balance) from account`); !errors.Is(err, cause) || got != "0" || n != 1 {
		w.Errorf("%v after %d runs; balance %s", err, n, got)
	}
}
