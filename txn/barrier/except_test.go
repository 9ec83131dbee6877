package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// odd is the prefix of transaction names here: names are data.
const odd = "t,'\n%_ü-"

// of returns a call of branch name in transaction odd+name, which began this number of steps
// after the others.
func of(ctx context.Context, name string, op branch.Operation, steps int) context.Context {
	c := call(name, op)
	c.Transaction, c.Begun = odd+name, after(steps)
	return branch.With(ctx, c)
}

func (w world) forgetExcept(t *testing.T, steps, want int, except ...string) {
	t.Helper()
	n, err := barrier.ForgetExcept(t.Context(), w.DB, w.table, after(steps), except, 0)
	if err != nil || n != want {
		t.Errorf("%d forgotten, %v, want %d", n, err, want)
	}
}

// testForgetExcept: excepted transactions keep their rows and accept calls, wherever they are
// below the mark; the first mark that does not except them deletes them.
func testForgetExcept(t *testing.T, w world) {
	for s, name := range []string{"b0", "b1", "b2", "b3"} {
		_, err := owned.try(of(t.Context(), name, branch.Try, s), w, "h1")
		ok(t, err)
	}
	w.forgetExcept(t, 3, 2, odd+"b0")
	w.forgetExcept(t, 3, 0)                    // not above: the exceptions stay as well
	w.forgetExcept(t, 2, 0, odd+"b1", odd+"x") // nor are there new ones
	again, err := owned.try(of(t.Context(), "b0", branch.Try, 0), w, "h2")
	if err != nil || again.ID != "h1" {
		t.Errorf("%v, %v: a late call of an excepted transaction", again, err)
	}
	ok(t, owned.cancel(of(t.Context(), "b0", branch.Cancel, 0), w))
	for _, late := range []string{"b1", "b2", "x", "b"} {
		_, err := owned.try(of(t.Context(), late, branch.Try, 1), w, "h2")
		wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
	}
	w.forgetExcept(t, 4, 2)
	_, err = owned.try(of(t.Context(), "b0", branch.Try, 0), w, "h2")
	wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
	if n := w.rows(t); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	_, err = barrier.ForgetExcept(t.Context(), w.DB, w.table, after(5), make([]string, 2000), 0)
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
}

// testForgetExceptWaits: rows of a transaction that is no longer excepted stay while a call is
// running that has read the exception.
func testForgetExceptWaits(t *testing.T, w world) {
	_, err := owned.try(of(t.Context(), "old", branch.Try, 0), w, "h1")
	ok(t, err)
	w.forgetExcept(t, 2, 0, odd+"old")
	tx := w.Begun(t, driver.ReadCommitted)
	_, err = barrier.DoIn(of(t.Context(), "old", branch.Try, 0), tx.Native(), w.table, seat,
		func(context.Context) (Hold, error) { t.Error("done again"); return Hold{}, nil })
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), bound/10)
	_, err = barrier.Forget(ctx, w.DB, w.table, after(3), 0)
	cancel()
	if err == nil {
		t.Error("forgotten while a call was at work")
	}
	if n := w.rows(t); n != 1 {
		t.Errorf("%d rows are left", n)
	}
	ok(t, tx.Commit(t.Context()))
	w.forgetExcept(t, 4, 1)
}

// testForgetExceptRaces: with continuous late calls of branches that one mark excepts and the next
// does not, each branch is done once.
func testForgetExceptRaces(t *testing.T, w world) {
	const branches = 30
	name := func(s int) string { return fmt.Sprintf("b%d", s) }
	for s := range branches {
		_, err := owned.try(of(t.Context(), name(s), branch.Try, s), w, "h1")
		ok(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for s := worker; ctx.Err() == nil; s++ {
				_, err := owned.try(of(t.Context(), name(s%branches), branch.Try, s%branches), w, "h2")
				if err != nil && !errors.Is(err, barrier.ErrForgotten) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	for s := 1; s <= branches+5; s++ {
		var except []string // each is excepted by the five marks above it
		for old := max(0, s-5); old < min(s, branches); old++ {
			except = append(except, odd+name(old))
		}
		testbed.Eventually(t, "a mark is in force", bound, func() bool {
			_, err := barrier.ForgetExcept(t.Context(), w.DB, w.table, after(s), except, 0)
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				t.Errorf("%v", err)
			}
			return err == nil
		})
	}
	stop()
	wg.Wait()
	for s := range branches {
		if got := w.effects(t, name(s)); got["hold"] != 1 {
			t.Errorf("%s: effects %v", name(s), got)
		}
	}
	_, err := barrier.Forget(t.Context(), w.DB, w.table, after(branches+6), 0)
	if n := w.rows(t); err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// testCreateAddsExceptions: a table of marks without the column of exceptions gets it, and keeps
// its mark.
func testCreateAddsExceptions(t *testing.T, w world) {
	_, err := owned.try(of(t.Context(), "old", branch.Try, 0), w, "h1")
	ok(t, err)
	w.forgetExcept(t, 1, 1)
	w.Do(t, func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, `alter table interlock_barrier_mark drop column excepted`)
		return err
	})
	w.Do(t, w.table.Create)
	w.Do(t, w.table.Create)
	_, err = owned.try(of(t.Context(), "old", branch.Try, 0), w, "h2")
	wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
	_, err = owned.try(of(t.Context(), "new", branch.Try, 2), w, "h1")
	ok(t, err)
}

// testForgetOverHTTP: a participant that receives marks forgets ended transactions, and keeps
// excepted ones.
func testForgetOverHTTP(t *testing.T, w world) {
	for _, name := range []string{"dead", "ended"} {
		_, err := owned.try(of(t.Context(), name, branch.Try, 0), w, "h1")
		ok(t, err)
	}
	server := httptest.NewServer(branchhttp.ForgetHandler(func(ctx context.Context, m branchhttp.Mark) (int, error) {
		return barrier.ForgetExcept(ctx, w.DB, w.table, m.Before, m.Except, 0)
	}))
	defer server.Close()
	caller := branchhttp.Caller{Client: server.Client()}
	n, err := caller.Forget(t.Context(), server.URL, branchhttp.Mark{Before: after(3), Except: []string{odd + "dead"}})
	if err != nil || n != 1 || w.rows(t) != 1 {
		t.Errorf("%d forgotten, %v; %d rows are left", n, err, w.rows(t))
	}
	again, err := owned.try(of(t.Context(), "dead", branch.Try, 0), w, "h2")
	if err != nil || again.ID != "h1" {
		t.Errorf("%v, %v", again, err)
	}
	_, err = owned.try(of(t.Context(), "ended", branch.Try, 0), w, "h2")
	wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
}
