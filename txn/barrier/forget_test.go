package barrier_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
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
		_, err := owned.try(since(t.Context(), fmt.Sprintf("b%d", s), branch.Try, s), w, "h1")
		ok(t, err)
	}
	w.forget(t, 0, 0, 0)
	w.forget(t, 4, 3, 3)
	w.forget(t, 4, 3, 1)
	w.forget(t, 2, 3, 0) // a mark does not fall
	if n := w.rows(t); n != 2 {
		t.Errorf("%d rows are left", n)
	}
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
	_, err = owned.try(since(t.Context(), "new", branch.Try, 9), w, "h3")
	ok(t, err)
}

// testBegunMayDiffer: after a repeated Run, or with another clock, calls have another begin of the
// transaction; in every form they belong to the same branches.
func testBegunMayDiffer(t *testing.T, w world) {
	for _, f := range []form{owned, lent, outside} {
		for n, apart := range []time.Duration{time.Millisecond, -time.Millisecond, driver.BarrierSpread} {
			other := begun.Add(apart)
			for _, last := range []branch.Operation{branch.Confirm, branch.Cancel} {
				name := fmt.Sprintf("%s%d%s", f.name, n, last)
				_, err := f.try(at(t.Context(), name, branch.Try, begun), w, "h1")
				ok(t, err)
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
	if got := len(w.effects(t, "undone")) + w.effects(t, "done")["hold"]; got != 1 {
		t.Errorf("%d effects", got)
	}
}

// testForgetWaits: while a call is running that has read an older mark, at any level, the new mark
// is not in force and deletes nothing; other calls continue.
func testForgetWaits(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead} {
		old, slow := fmt.Sprintf("old%d", i), fmt.Sprintf("slow%d", i)
		_, err := owned.try(since(t.Context(), old, branch.Try, i), w, "h1")
		ok(t, err)
		tx := w.Begun(t, level)
		_, err = barrier.DoIn(since(t.Context(), slow, branch.Try, i), tx.Native(), w.table, seat,
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
		if n := w.rows(t); n != rows {
			t.Errorf("%d rows are left of %d", n, rows)
		}
		_, err = owned.try(since(t.Context(), fmt.Sprintf("new%d", i), branch.Try, 10), w, "h1")
		ok(t, err)
		ok(t, tx.Commit(t.Context()))
		w.forget(t, i+1, 0, 2)
	}
}

// testForgetSnapshots: a transaction with a snapshot from before the mark does not repeat a branch
// whose row is deleted.
func testForgetSnapshots(t *testing.T, w world) {
	for i, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead, driver.Serializable} {
		name := fmt.Sprintf("b%d", i)
		_, err := owned.try(since(t.Context(), name, branch.Try, i), w, "h1")
		ok(t, err)
		tx := w.Begun(t, level)
		_, err = databases.Value[int64](t.Context(), tx.Native(), `select count(*) from effect`)
		ok(t, err)
		if w.Dialect == driver.MariaDB && level == driver.Serializable {
			level = driver.RepeatableRead // it has locked what it has read, and nothing here
		}
		w.forget(t, i+1, 0, 1)
		_, err = barrier.DoIn(since(t.Context(), name, branch.Try, i), tx.Native(), w.table, seat,
			func(context.Context) (Hold, error) { t.Errorf("%v: done again", level); return Hold{}, nil })
		if kind := interlock.Kind(err); err == nil || kind != interlock.Retryable && !errors.Is(err, barrier.ErrForgotten) {
			t.Errorf("%v: %v (%v)", level, err, kind)
		}
		ok(t, tx.Rollback(t.Context()))
	}
}

// testForgetRaces: with continuous late calls of branches that are being forgotten, each branch is
// done once.
func testForgetRaces(t *testing.T, w world) {
	const branches = 60
	name := func(s int) string { return fmt.Sprintf("b%d", s) }
	for s := range branches {
		_, err := owned.try(since(t.Context(), name(s), branch.Try, s), w, "h1")
		ok(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for s := worker; ctx.Err() == nil; s++ {
				_, err := owned.try(since(t.Context(), name(s%branches), branch.Try, s%branches), w, "h2")
				if err != nil && !errors.Is(err, barrier.ErrForgotten) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	forgotten := 0
	for s := 1; s <= branches; s++ {
		testbed.Eventually(t, "a mark is in force", bound, func() bool {
			n, err := barrier.Forget(t.Context(), w.DB, w.table, after(s), 0)
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				t.Errorf("%v", err)
			}
			forgotten += n
			return err == nil
		})
	}
	stop()
	wg.Wait()
	n, err := barrier.Forget(t.Context(), w.DB, w.table, after(branches), 0)
	ok(t, err)
	if left := w.rows(t); left != 0 || forgotten+n != branches {
		t.Errorf("%d forgotten, %d left", forgotten+n, left)
	}
	if n := databases.One[int64](t, w.DB, `select count(*) from effect`); n != branches {
		t.Errorf("%d effects of %d branches", n, branches)
	}
}
