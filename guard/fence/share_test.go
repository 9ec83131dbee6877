package fence_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// testShared: a shared mark is not raised meanwhile, and can be shared by others; a
// transaction that shares it later sees the raised mark.
func testShared(t *testing.T, w world) {
	ok(t, w.enter(t, w.table, "a", token(1)))
	ok(t, w.enter(t, w.table, "b", token(7)))
	ok(t, w.enter(t, w.table, "c", token(7)))
	share := func(db driver.SQL) map[string]interlock.Token {
		t.Helper()
		seen, err := w.table.Share(t.Context(), db, "b", "a", "nothing")
		ok(t, err)
		return seen
	}
	first, second := w.Begun(t, driver.SessionIsolation), w.Begun(t, driver.SessionIsolation)
	for _, tx := range []driver.Tx[driver.SQL]{first, second} {
		if got, want := fmt.Sprint(share(tx)), fmt.Sprint(map[string]interlock.Token{"a": token(1), "b": token(7)}); got != want {
			t.Errorf("shared %s, want %s", got, want)
		}
	}
	entered := testbed.Later(t, bound, func() error {
		return w.Try(context.Background(), func(ctx context.Context, db driver.SQL) error {
			return w.table.Enter(ctx, db, "a", token(2), "")
		})
	})
	w.blocked(t, 1)
	ok(t, first.Commit(t.Context()))
	w.blocked(t, 1)
	ok(t, second.Commit(t.Context()))
	ok(t, entered())
	raising := w.Begun(t, driver.SessionIsolation)
	ok(t, w.table.Enter(t.Context(), raising, "c", token(8), ""))
	now, err := w.table.ShareNow(t.Context(), w.Begun(t, driver.SessionIsolation), "a", "c")
	if ok(t, err); fmt.Sprint(now) != fmt.Sprint(map[string]interlock.Token{"a": token(2)}) {
		t.Errorf("shared %v beside one who raises c", now)
	}
	ok(t, raising.Rollback(t.Context()))
	if got := share(w.Begun(t, driver.SessionIsolation)); got["a"] != token(2) {
		t.Errorf("shared %v after %d has entered", got, token(2))
	}
	if _, err := w.table.Share(t.Context(), w.Begun(t, driver.SessionIsolation), "a", ""); interlock.Kind(err) != interlock.Bug {
		t.Errorf("a resource without a name: %v", err)
	}
}
