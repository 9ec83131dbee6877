package version_test

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

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
