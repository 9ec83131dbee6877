package barrier_test

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// testSpoiled: after a function has failed, or panicked, a caller that ignores that cannot commit
// its row.
func testSpoiled(t *testing.T, w world) {
	for _, panics := range []bool{false, true} {
		tx := w.Begun(t, driver.SessionIsolation)
		func() {
			defer func() { _ = recover() }()
			_, err := barrier.DoIn(calling(t.Context(), "b", branch.Try), tx, w.table, seat, func(ctx context.Context) (Hold, error) {
				ok(t, effect(ctx, tx, "b", "hold"))
				if panics {
					panic("oops")
				}
				return Hold{}, errBroken
			})
			wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, errBroken)
		}()
		if err := tx.Commit(t.Context()); err == nil && w.rows(t) > 0 {
			t.Error("it was committed")
		}
		if n := w.rows(t); n != 0 || len(w.effects(t, "b")) != 0 {
			t.Errorf("%d rows, effects %v", n, w.effects(t, "b"))
		}
	}
	h, err := lent.try(calling(t.Context(), "b", branch.Try), w, "h1")
	if err != nil || h.ID != "h1" {
		t.Errorf("%v, %v", h, err)
	}
	tx := w.Begun(t, driver.SessionIsolation)
	err = barrier.UndoIn(calling(t.Context(), "b", branch.Cancel), tx, w.table, func(context.Context, *Hold) error { return errBroken })
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, errBroken)
	_ = tx.Commit(t.Context())
	txntest.Equal(t, "state", w.state(t, "b"), "tried")
}

// testRefusalInLent: a refusal undoes the effects of its function and nothing else in the
// transaction, also after a failed statement, and inside another branch.
func testRefusalInLent(t *testing.T, w world) {
	w.Exec(t, `create table once_only (id int primary key)`)
	w.Do(t, func(ctx context.Context, tx driver.SQL) error {
		if err := effect(ctx, tx, "before", "kept"); err != nil {
			return err
		}
		outer, err := barrier.DoIn(calling(ctx, "outer", branch.Try), tx, w.table, seat, func(ctx context.Context) (Hold, error) {
			inner, err := barrier.DoIn(calling(ctx, "inner", branch.Try), tx, w.table, seat, func(ctx context.Context) (Hold, error) {
				if err := effect(ctx, tx, "inner", "hold"); err != nil {
					return Hold{}, err
				}
				_, err := tx.Exec(ctx, `insert into once_only (id) values (1), (1)`)
				return Hold{}, branch.Fail(err)
			})
			if err != nil || inner.Refused == nil {
				t.Errorf("%+v, %v", inner, err)
			}
			return Hold{"h1"}, errors.Join(err, effect(ctx, tx, "outer", "hold"))
		})
		if err != nil || outer.Refused != nil || outer.Output.ID != "h1" {
			t.Errorf("%+v, %v", outer, err)
		}
		return err
	})
	for name, want := range map[string]map[string]int{"before": {"kept": 1}, "outer": {"hold": 1}, "inner": {}} {
		if got := w.effects(t, name); !maps.Equal(got, want) {
			t.Errorf("%s: effects %v, want %v", name, got, want)
		}
	}
	if in, out := w.state(t, "inner"), w.state(t, "outer"); in != "refused" || out != "tried" {
		t.Errorf("inner is %s, outer is %s", in, out)
	}
}

// testOuterRefusal: a refusal also undoes the branches inside it, with their rows.
func testOuterRefusal(t *testing.T, w world) {
	w.Do(t, func(ctx context.Context, tx driver.SQL) error {
		outer, err := barrier.DoIn(calling(ctx, "outer", branch.Try), tx, w.table, seat, func(ctx context.Context) (Hold, error) {
			ok(t, effect(ctx, tx, "outer", "hold"))
			_, err := barrier.DoIn(calling(ctx, "inner", branch.Try), tx, w.table, seat, func(ctx context.Context) (Hold, error) {
				return Hold{"h1"}, effect(ctx, tx, "inner", "hold")
			})
			ok(t, err)
			return Hold{}, branch.Fail(errNoSeat)
		})
		if outer.Refused == nil {
			t.Errorf("%+v", outer)
		}
		return err
	})
	if n, got := w.rows(t), w.state(t, "outer"); n != 1 || got != "refused" {
		t.Errorf("%d rows, outer is %s", n, got)
	}
	for _, name := range []string{"outer", "inner"} {
		if got := w.effects(t, name); len(got) != 0 {
			t.Errorf("%s: effects %v", name, got)
		}
	}
}

// testRefusedTwice: of two concurrent calls the first refuses and the second would not; both have
// one answer.
func testRefusedTwice(t *testing.T, w world) {
	try := calling(t.Context(), "b", branch.Try)
	second := make(chan answer, 1)
	_, err := barrier.Do(try, w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) {
		go func() {
			h, err := owned.try(try, w, "h2")
			second <- answer{h, err}
		}()
		testbed.Eventually(t, "the second one waits", bound, func() bool { return w.Waiting(t) == 1 })
		return hold(ctx, tx, "")
	})
	other := <-second
	switch got := w.effects(t, "b"); {
	case err == nil && other.err == nil && other.Hold.ID == "h2" && got["hold"] == 1:
	case wordOf(err, "") == "refused" && wordOf(other.err, "") == "refused" && len(got) == 0:
	default:
		t.Errorf("%v; %+v; effects %v", err, other, got)
	}
}

type answer struct {
	Hold
	err error
}

// testParticipant: one function answers all operations, by their JSON, and missing functions do
// nothing.
func testParticipant(t *testing.T, w world) {
	for _, full := range []bool{true, false} {
		p := &barrier.Participant[driver.SQL, Seat, Hold]{DB: w.DB, Table: w.table,
			Do: func(ctx context.Context, tx driver.SQL, s Seat) (Hold, error) {
				if s != seat {
					return Hold{}, branch.Fail(errNoSeat)
				}
				return hold(ctx, tx, "h1")
			}}
		name := map[bool]string{true: "full", false: "bare"}[full]
		want := map[string]int{"hold": 1}
		if full {
			p.Confirm, p.Undo = sell, free
			want["sell h1"] = 1
		}
		for _, c := range []struct {
			op            branch.Operation
			input, output string
			word          string
		}{
			{branch.Prepare, `{"Row":12}`, `{"ID":"h1"}`, "done"},
			{branch.Prepare, `{"Row":12}`, `{"ID":"h1"}`, "done"},
			{branch.Commit, ``, ``, "done"},
			{branch.Rollback, ``, ``, "violation"},
			{branch.Commit, `null`, ``, "done"},
		} {
			out, err := p.Call(calling(t.Context(), name, c.op), []byte(c.input))
			if string(out) != c.output || wordOf(err, "done") != c.word {
				t.Errorf("%s: %s, %v", c.op, out, err)
			}
		}
		_, err := p.Call(calling(t.Context(), name+"2", branch.Prepare), []byte(`{"Row":13}`))
		if wordOf(err, "") != "refused" {
			t.Errorf("%v", err)
		}
		if got := w.effects(t, name); !maps.Equal(got, want) {
			t.Errorf("effects %v, want %v", got, want)
		}
	}
}

// testEndedInside: a function that ends its transaction is detected when its output is stored, and
// is not recorded as done.
func testEndedInside(t *testing.T, w world) {
	w.table.Attempts = 1
	_, err := barrier.Do(calling(t.Context(), "b", branch.Try), w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) {
		_, err := tx.Exec(ctx, `rollback`)
		return Hold{"h1"}, err
	})
	wantKind(t, err, interlock.Retryable, branch.ClassRetry, nil)
	txntest.Equal(t, "rows", w.rows(t), 0)
}

// testAlarm: each violation is reported, in every form, and nothing else.
func testAlarm(t *testing.T, w world) {
	var told atomic.Int64
	w.table.Alarm = func(v *barrier.ViolationError) {
		if v.Call.Branch != "b" || v.State != "cancelled" && v.State != "blocked" {
			t.Errorf("%+v", v)
		}
		told.Add(1)
	}
	_, err := owned.try(calling(t.Context(), "b", branch.Try), w, "h1")
	ok(t, err)
	ok(t, owned.cancel(calling(t.Context(), "b", branch.Cancel), w))
	for i, f := range []form{owned, lent, outside} {
		err := f.confirm(calling(t.Context(), "b", branch.Confirm), w)
		wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrViolation)
		txntest.Equal(t, f.name+": reports", told.Load(), int64(i+1))
	}
	_, err = owned.try(calling(t.Context(), "b", branch.Try), w, "h1")
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
	if told.Load() != 3 {
		t.Error("received what is no violation")
	}
}
