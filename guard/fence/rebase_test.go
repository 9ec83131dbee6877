package fence_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
)

func (w world) rebase(t *testing.T, resource string, to interlock.Token, reason, by string) (old driver.Mark, err error) {
	t.Helper()
	err = w.Try(t.Context(), func(ctx context.Context, db driver.SQL) (err error) {
		old, err = w.table.Rebase(ctx, db, resource, to, reason, by)
		return err
	})
	return old, err
}

func testRebase(t *testing.T, w world) {
	if m := w.mark(t, "r"); m != (driver.Mark{}) {
		t.Errorf("a resource that nothing entered has the mark %+v", m)
	}
	ok(t, w.enter(t, w.table, "r", token(9)))
	shown := w.mark(t, "r")
	if shown.Token != token(9) || shown.Source != "tester" || time.Since(shown.Raised).Abs() > time.Hour {
		t.Errorf("shown: %+v", shown)
	}

	for _, tt := range []struct {
		to         interlock.Token
		reason, by string
		kind       interlock.ErrorKind
	}{
		{token(1), "", "ops", interlock.Bug},
		{token(1), " \n", "ops", interlock.Bug},
		{token(1), "restored", "", interlock.Bug},
		{-1, "restored", "ops", interlock.Bug},
		{7, "restored", "ops", interlock.Bug},
		{math.MaxInt64, "restored", "ops", interlock.Definite},
	} {
		_, err := w.rebase(t, "r", tt.to, tt.reason, tt.by)
		wantKind(t, err, tt.kind, nil)
	}
	tx := w.Begun(t, driver.SessionIsolation)
	_, err := w.table.Rebase(t.Context(), tx, "r", token(1), "changed my mind", "ops")
	ok(t, err)
	ok(t, tx.Rollback(t.Context()))
	if m := w.mark(t, "r"); m != shown || w.text(t, `select concat(count(*)) from interlock_fence_rebase`) != "0" {
		t.Errorf("refused or rolled back, a rebase left %+v", m)
	}

	old, err := w.rebase(t, "r", token(3), "restored from a backup", "ops")
	ok(t, err)
	if old != shown {
		t.Errorf("it replaced %+v, not %+v", old, shown)
	}
	if m := w.mark(t, "r"); m.Token != token(3) || m.Source != "rebase by ops: restored from a backup" || m.Raised.Before(shown.Raised) {
		t.Errorf("after the rebase: %+v", m)
	}
	wantStale(t, w.enter(t, w.table, "r", token(2)), token(3), token(2))
	ok(t, w.enter(t, w.table, "r", token(4)))

	old, err = w.rebase(t, "new", token(5), "moved here", "ops")
	ok(t, err)
	if old != (driver.Mark{}) {
		t.Errorf("it replaced %+v, and there was nothing", old)
	}
	old, err = w.rebase(t, "new", 0, "start again", "ops")
	ok(t, err)
	if old.Token != token(5) {
		t.Errorf("it replaced %+v", old)
	}
	ok(t, w.enter(t, w.table, "new", token(1)))

	want := "r|" + token(9).String() + "|" + token(3).String() + "|restored from a backup|ops;" +
		"new|0|" + token(5).String() + "|moved here|ops;new|" + token(5).String() + "|0|start again|ops"
	if got := w.text(t, w.audit); got != want {
		t.Errorf("recorded\n%s\nwant\n%s", got, want)
	}
}

// TestMisuse is refused before any request to a database.
func TestMisuse(t *testing.T) {
	_, err := fence.Table{}.Show(t.Context(), foreign{}, "r")
	wantKind(t, err, interlock.Bug, nil)
	wantKind(t, fence.Table{}.Create(t.Context(), foreign{}), interlock.Bug, nil)
	wantKind(t, fence.Column{Table: "t", Key: "k", Column: "c"}.Enter(t.Context(), foreign{}, "r", token(1), ""), interlock.Bug, nil)
}

// foreign is an unsupported database.
type foreign struct{ driver.SQL }

func (foreign) Dialect() driver.Dialect { return "klingon" }
