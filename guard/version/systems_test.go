package version_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
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

func testCosts(w world) {
	for kind, g := range w.guards() {
		w.order(kind)
		extra := int64(0)
		if kind == "column" && w.Dialect == driver.MariaDB {
			extra = 1 // it has no UPDATE … RETURNING
		}
		for _, step := range []struct {
			c    version.Change
			want version.Outcome
			cost int64
		}{
			{change(kind, 1, ""), version.Applied, 1 + extra},
			{change(kind, 3, ""), version.Applied, 1 + extra},
			{change(kind, 2, ""), version.Stale, 1},
			{change(kind, 3, ""), version.Duplicate, 1},
			{terminal(change(kind, 1, "")), version.Stale, 1},
			{wins(change(kind, 1, "")), version.Applied, 1 + extra},
			{change(kind, 4, ""), version.Terminal, 1},
		} {
			var n databases.Counted
			w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
				o, err := g.Apply(ctx, n.SQL(db), step.c)
				if o != step.want || n.Statements.Load() != step.cost {
					w.Errorf("%s: %+v: %v by %d statements, want %v by %d", kind, step.c, o, n.Statements.Load(), step.want, step.cost)
				}
				return err
			})
		}
	}
	if w.Dialect == driver.Postgres { // an old or known change writes nothing, not even a lock
		const row = `select concat(xmin, ' ', xmax, ' ', ctid) from interlock_version where entity = 'table'`
		before := w.text(row)
		w.mustApply(version.Table{}, change("table", 4, ""), version.Terminal)
		w.mustApply(version.Table{}, terminal(change("table", 1, "")), version.Duplicate)
		if after := w.text(row); after != before {
			w.Errorf("the row was %s and is %s", before, after)
		}
	}
	w.accounts()
	n := &databases.Counted{BeginnerAt: w.DB}
	ok(w.T, version.Update(w.Context(), updater(w.T, version.Options{}), n, accounts, "1", func(context.Context, *account) error { return nil }))
	if n.Statements.Load() != 2 || n.Commits.Load() != 1 {
		w.Errorf("an update costs %d statements and %d commits", n.Statements.Load(), n.Commits.Load())
	}
}

// lossy returns w's database through a proxy that loses the answers to COMMIT.
func (w world) lossy() driver.Beginner[driver.SQL] {
	w.Helper()
	proxy := testbed.NewProxy(w.T, w.Server.Addr())
	db, closed, err := databases.Connect(w.Context(), w.Client, strings.Replace(w.URL, w.Server.Addr(), proxy.Addr(), 1))
	ok(w.T, err)
	w.Cleanup(func() { proxy.Heal(); closed() })
	return databases.Committing[driver.SQL]{BeginnerAt: db, Instead: func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
		proxy.DropReplies()
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return tx.Commit(ctx)
	}}
}
