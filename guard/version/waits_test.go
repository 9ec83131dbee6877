package version_test

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// behind starts fn, and returns once fn waits for a lock. wait returns fn's error.
func (w world) behind(fn func() error) (wait func() error) {
	w.Helper()
	wait = testbed.Later(w.T, bound, fn)
	testbed.Eventually(w.T, "it waits for a lock", bound, func() bool { return w.Waiting(w.T) == 1 })
	return wait
}

// first returns a transaction that has applied c and set the status of its order.
func (w world) first(g version.Guard, c version.Change) driver.Tx[driver.SQL] {
	w.Helper()
	tx := w.Begun(w.T, driver.SessionIsolation)
	if o, err := g.Apply(w.Context(), tx, c); err != nil || o != version.Applied {
		w.Fatal(o, err)
	}
	_, err := tx.Exec(w.Context(), setStatus(c.Entity, c.Stamp.String()))
	ok(w.T, err)
	return tx
}

// testWaits: the second transaction waits, then decides by the new state, and sees it.
func testWaits(w world) {
	for kind, g := range w.guards() {
		w.order(kind)
		for _, step := range []struct {
			first, second version.Change
			commit        bool
			want          version.Outcome
			status        string // the status that the second one reads
		}{
			{change(kind, 2, ""), change(kind, 1, ""), false, version.Applied, "new"}, // a rolled back change does not count
			{change(kind, 9, ""), change(kind, 8, ""), true, version.Stale, "9"},
			{change(kind, 10, ""), change(kind, 10, ""), true, version.Duplicate, "10"},
			{change(kind, 11, ""), change(kind, 12, ""), true, version.Applied, "11"},
			{terminal(change(kind, 13, "")), change(kind, 14, ""), true, version.Terminal, "13"},
		} {
			first := w.first(g, step.first)
			var o version.Outcome
			var status string
			second := w.behind(func() error {
				return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) (err error) {
					if o, err = g.Apply(ctx, db, step.second); err == nil {
						status, err = databases.Value[string](ctx, db, `select status from orders where id = `+quoted(kind))
					}
					return err
				})
			})
			if step.commit {
				ok(w.T, first.Commit(w.Context()))
			} else {
				ok(w.T, first.Rollback(w.Context()))
			}
			if ok(w.T, second()); o != step.want || status != step.status {
				w.Errorf("%s: %+v behind %+v: %v, reading %q", kind, step.second, step.first, o, status)
			}
		}
	}
}

// testRowGone: the row is deleted while a change waits for it.
func testRowGone(w world) {
	w.guards()
	w.order("a")
	tx := w.Begun(w.T, driver.SessionIsolation)
	_, err := tx.Exec(w.Context(), `delete from orders`)
	ok(w.T, err)
	second := w.behind(func() error {
		_, err := w.apply(version.Column{Table: "orders", Key: "id", Version: "version"}, change("a", 1, ""))
		return err
	})
	ok(w.T, tx.Commit(w.Context()))
	var missing *version.NoRowError
	err = second()
	if mustFail(w.T, err, interlock.Definite, nil); !errors.As(err, &missing) || missing.Key != "a" {
		w.Errorf("%v", err)
	}
}

// testCrossed: two transactions apply to the same entities in opposite orders, and
// the database undoes one.
func testCrossed(w world) {
	for kind, g := range w.guards() {
		a, b := kind+" a", kind+" b"
		w.order(a)
		w.order(b)
		first := w.first(g, change(a, 1, ""))
		second := w.behind(func() error {
			return w.Try(w.Context(), func(ctx context.Context, db driver.SQL) error {
				if _, err := g.Apply(ctx, db, change(b, 2, "")); err != nil {
					return err
				}
				_, err := g.Apply(ctx, db, change(a, 2, ""))
				return err
			})
		})
		_, mine := g.Apply(w.Context(), first, change(b, 1, ""))
		if mine == nil {
			mine = first.Commit(w.Context())
		} else {
			ok(w.T, first.Rollback(w.Context()))
		}
		other := second()
		if (mine == nil) == (other == nil) {
			w.Fatalf("%s: %v and %v", kind, mine, other)
		}
		mustFail(w.T, errors.Join(mine, other), interlock.Retryable, nil)
	}
}
