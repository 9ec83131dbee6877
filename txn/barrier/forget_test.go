package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// after returns begun plus a number of steps. The mark of one step forgets the rows of the step
// before.
func after(steps int) time.Time {
	return begun.Add(time.Duration(steps) * 2 * driver.BarrierSpread)
}

// since returns a call of a transaction that began this number of steps after the others.
func since(ctx context.Context, name string, op branch.Operation, steps int) context.Context {
	return at(ctx, name, op, after(steps))
}

// at returns a call of a transaction that began at a time.
func at(ctx context.Context, name string, op branch.Operation, begun time.Time) context.Context {
	c := call(name, op)
	c.Begun = begun
	return branch.With(ctx, c)
}

func (w world) forget(t *testing.T, steps, limit, want int) {
	t.Helper()
	w.forgetBefore(t, after(steps), limit, want)
}

func (w world) forgetBefore(t *testing.T, mark time.Time, limit, want int) {
	t.Helper()
	n, err := barrier.Forget(t.Context(), w.DB, w.table, mark, limit)
	if err != nil || n != want {
		t.Errorf("%d forgotten, %v, want %d", n, err, want)
	}
}

// testForget: branches that began long before the mark are deleted, in batches, and their calls are
// refused forever; those that began at the mark or later stay.
func testForget(t *testing.T, w world) {
	for s := range 6 {
		ok(t, txntest.Second(owned.try(since(t.Context(), fmt.Sprintf("b%d", s), branch.Try, s), w, "h1")))
	}
	w.forget(t, 0, 0, 0)
	w.forget(t, 4, 3, 3)
	w.forget(t, 4, 3, 1)
	w.forget(t, 2, 3, 0) // a mark does not fall
	txntest.Equal(t, "rows left", w.rows(t), 2)
	for s := range 6 {
		name := fmt.Sprintf("b%d", s)
		_, err := owned.try(since(t.Context(), name, branch.Try, s), w, "h2")
		confirm := owned.confirm(since(t.Context(), name, branch.Confirm, s), w)
		if s >= 4 {
			ok(t, errors.Join(err, confirm))
			continue
		}
		cancel := owned.cancel(since(t.Context(), name, branch.Cancel, s), w)
		for _, err := range []error{err, confirm, cancel} {
			wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
		}
		if got := w.effects(t, name); len(got) != 1 || got["hold"] != 1 {
			t.Errorf("effects of a forgotten branch: %v", got)
		}
	}
	// A confirm above the mark is not a forgotten one.
	wantKind(t, owned.confirm(since(t.Context(), "new", branch.Confirm, 9), w), interlock.Definite, branch.ClassFail, barrier.ErrViolation)
	// A mark that would refuse all calls is not stored.
	_, err := barrier.Forget(t.Context(), w.DB, w.table, time.Now().Add(time.Hour), 0)
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
	ok(t, txntest.Second(owned.try(since(t.Context(), "new", branch.Try, 9), w, "h3")))
}

// testBegunMayDiffer: after a repeated Run, or with another clock, calls have another begin of the
// transaction; in every form they belong to the same branches.
func testBegunMayDiffer(t *testing.T, w world) {
	for _, f := range []form{owned, lent, outside} {
		for n, apart := range []time.Duration{time.Millisecond, -time.Millisecond, driver.BarrierSpread} {
			other := begun.Add(apart)
			for _, last := range []branch.Operation{branch.Confirm, branch.Cancel} {
				name := fmt.Sprintf("%s%d%s", f.name, n, last)
				ok(t, txntest.Second(f.try(at(t.Context(), name, branch.Try, begun), w, "h1")))
				again, err := f.try(at(t.Context(), name, branch.Try, other), w, "h2")
				ok(t, err)
				end, kind := f.confirm, "sell h1"
				if last == branch.Cancel {
					end, kind = f.cancel, "free h1"
				}
				ok(t, errors.Join(end(at(t.Context(), name, last, other), w), end(at(t.Context(), name, last, begun), w)))
				if got := w.effects(t, name); again.ID != "h1" || len(got) != 2 || got["hold"] != 1 || got[kind] != 1 {
					t.Errorf("%s: %v, effects %v", name, again, got)
				}
			}
		}
	}
}

// testLateCallOfALaterBegin: a late call finds its branch also if its begin is later than that of
// earlier calls, and the mark is between the two.
func testLateCallOfALaterBegin(t *testing.T, w world) {
	later := begun.Add(driver.BarrierSpread)
	_, err := owned.try(at(t.Context(), "done", branch.Try, begun), w, "h1")
	ok(t, errors.Join(err, owned.cancel(at(t.Context(), "undone", branch.Cancel, begun), w)))
	for _, mark := range []time.Time{begun.Add(time.Millisecond), later} {
		w.forgetBefore(t, mark, 0, 0)
		_, err := owned.try(at(t.Context(), "undone", branch.Try, later), w, "h2")
		wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
		h, err := owned.try(at(t.Context(), "done", branch.Try, later), w, "h2")
		if err != nil || h.ID != "h1" {
			t.Errorf("%v, %v", h, err)
		}
	}
	w.forgetBefore(t, later.Add(time.Millisecond), 0, 2) // by their first begin
	txntest.Equal(t, "effects", len(w.effects(t, "undone"))+w.effects(t, "done")["hold"], 1)
}

// testForgetWaits: while a call is running that has read an older mark, at any level, the new mark
// is not in force and deletes nothing; other calls continue.
func testForgetWaits(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead} {
		old, slow := fmt.Sprintf("old%d", i), fmt.Sprintf("slow%d", i)
		ok(t, txntest.Second(owned.try(since(t.Context(), old, branch.Try, i), w, "h1")))
		tx := w.Begun(t, level)
		_, err := barrier.DoIn(since(t.Context(), slow, branch.Try, i), tx.Native(), w.table, seat,
			func(ctx context.Context) (Hold, error) { return hold(ctx, tx.Native(), "h1") })
		ok(t, err)
		rows := w.rows(t)
		if w.Dialect == driver.MariaDB {
			_, err := barrier.Forget(t.Context(), w.DB, w.table, after(i+1), 0)
			wantKind(t, err, interlock.Retryable, branch.ClassUnknown, interlock.ErrHeld)
		} else {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := barrier.Forget(ctx, w.DB, w.table, after(i+1), 0)
				done <- err
			}()
			testbed.Eventually(t, "the mark waits", bound, func() bool {
				return databases.One[int64](t, w.DB, `select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'delete%'
						and datname = current_database()`) == 1
			})
			cancel()
			if err := <-done; err == nil {
				t.Error("forgotten while a call was at work")
			}
		}
		txntest.Equal(t, "rows left", w.rows(t), rows)
		ok(t, txntest.Second(owned.try(since(t.Context(), fmt.Sprintf("new%d", i), branch.Try, 10), w, "h1")))
		ok(t, tx.Commit(t.Context()))
		w.forget(t, i+1, 0, 2)
	}
}

// testForgetSnapshots: a transaction with a snapshot from before the mark does not repeat a branch
// whose row is deleted.
func testForgetSnapshots(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable} {
		name := fmt.Sprintf("b%d", i)
		ok(t, txntest.Second(owned.try(since(t.Context(), name, branch.Try, i), w, "h1")))
		tx := w.Begun(t, level)
		ok(t, txntest.Second(databases.Value[int64](t.Context(), tx.Native(), `select count(*) from effect`)))
		if w.Dialect == driver.MariaDB && level == driver.Serializable {
			level = driver.RepeatableRead // it has locked what it has read, and nothing here
		}
		w.forget(t, i+1, 0, 1)
		_, err := barrier.DoIn(since(t.Context(), name, branch.Try, i), tx.Native(), w.table, seat,
			func(context.Context) (Hold, error) { t.Errorf("%v: done again", level); return Hold{}, nil })
		if kind := interlock.Kind(err); err == nil || kind != interlock.Retryable && !errors.Is(err, barrier.ErrForgotten) {
			t.Errorf("%v: %v (%v)", level, err, kind)
		}
		ok(t, tx.Rollback(t.Context()))
	}
}

// testConfirmWhileTheMarkMoves: a confirm whose snapshot has only a deleted mark finds its branch.
func testConfirmWhileTheMarkMoves(t *testing.T, w world) {
	if w.Dialect == driver.MariaDB {
		return // there the mark is one row
	}
	w.table.Level = driver.ReadCommitted
	ok(t, txntest.Second(owned.try(calling(t.Context(), "b", branch.Try), w, "h1")))
	tx := w.Begun(t, driver.ReadCommitted)
	_, err := tx.Exec(t.Context(), `delete from interlock_barrier_mark`)
	ok(t, err)
	done := make(chan error, 1)
	go func() { done <- owned.confirm(calling(t.Context(), "b", branch.Confirm), w) }()
	testbed.Eventually(t, "the confirm waits for the mark", bound, func() bool { return w.Waiting(t) > 0 })
	w.Exec(t, `insert into interlock_barrier_mark (generation, mark) values (2, 0)`)
	ok(t, tx.Commit(t.Context()))
	ok(t, testbed.Receive(t, done, "the confirm"))
}

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
		ok(t, txntest.Second(owned.try(of(t.Context(), name, branch.Try, s), w, "h1")))
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
	txntest.Equal(t, "rows left", w.rows(t), 0)
	_, err = barrier.ForgetExcept(t.Context(), w.DB, w.table, after(5), make([]string, 2000), 0)
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
}

// testForgetExceptWaits: rows of a transaction that is no longer excepted stay while a call is
// running that has read the exception.
func testForgetExceptWaits(t *testing.T, w world) {
	ok(t, txntest.Second(owned.try(of(t.Context(), "old", branch.Try, 0), w, "h1")))
	w.forgetExcept(t, 2, 0, odd+"old")
	tx := w.Begun(t, driver.ReadCommitted)
	_, err := barrier.DoIn(of(t.Context(), "old", branch.Try, 0), tx.Native(), w.table, seat,
		func(context.Context) (Hold, error) { t.Error("done again"); return Hold{}, nil })
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), bound/10)
	_, err = barrier.Forget(ctx, w.DB, w.table, after(3), 0)
	cancel()
	if err == nil {
		t.Error("forgotten while a call was at work")
	}
	txntest.Equal(t, "rows left", w.rows(t), 1)
	ok(t, tx.Commit(t.Context()))
	w.forgetExcept(t, 4, 1)
}

// testForgetExceptRaces: with continuous late calls of branches that one mark excepts and the next
// does not, each branch is done once.
func testForgetExceptRaces(t *testing.T, w world) {
	const branches = 30
	name := func(s int) string { return fmt.Sprintf("b%d", s) }
	for s := range branches {
		ok(t, txntest.Second(owned.try(of(t.Context(), name(s), branch.Try, s), w, "h1")))
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
	ok(t, txntest.Second(owned.try(of(t.Context(), "old", branch.Try, 0), w, "h1")))
	w.forgetExcept(t, 1, 1)
	w.Do(t, func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, `alter table interlock_barrier_mark drop column excepted`)
		return err
	})
	w.Do(t, w.table.Create)
	w.Do(t, w.table.Create)
	_, err := owned.try(of(t.Context(), "old", branch.Try, 0), w, "h2")
	wantKind(t, err, interlock.Definite, branch.ClassUnknown, barrier.ErrForgotten)
	ok(t, txntest.Second(owned.try(of(t.Context(), "new", branch.Try, 2), w, "h1")))
}

// testForgetOverHTTP: a participant that receives marks forgets ended transactions, and keeps
// excepted ones.
func testForgetOverHTTP(t *testing.T, w world) {
	for _, name := range []string{"dead", "ended"} {
		ok(t, txntest.Second(owned.try(of(t.Context(), name, branch.Try, 0), w, "h1")))
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
