package barrier_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// charge is an outside do whose target has a given answer.
func (w world) charge(ctx context.Context, id string, err error) (Hold, error) {
	return barrier.DoOutside(ctx, w.DB, w.table, seat, func(context.Context, string) (Hold, error) { return Hold{id}, err })
}

// refund is an outside undo that records the result of the do, and fails with err.
func (w world) refund(ctx context.Context, told *[]string, err error) error {
	return barrier.UndoOutside(ctx, w.DB, w.table, func(_ context.Context, _ string, done *Hold) error {
		what := "unknown"
		if done != nil {
			what = done.ID
		}
		*told = append(*told, what)
		return err
	})
}

func (w world) state(t *testing.T, name string) string {
	t.Helper()
	return databases.One[string](t, w.DB, `select state from interlock_barrier where branch = '`+name+`'`)
}

// testUnknownOutcome: a do whose answer is lost is in doubt: it is called again with the same key,
// and an undo runs for it (Seata #6374).
func testUnknownOutcome(t *testing.T, w world) {
	lost := errors.New("connection reset")
	do, undo := calling(t.Context(), "b", branch.Do), calling(t.Context(), "b", branch.Undo)
	var keys []string
	for i := range 3 {
		h, err := barrier.DoOutside(do, w.DB, w.table, seat, func(_ context.Context, key string) (Hold, error) {
			keys = append(keys, key)
			txntest.Equal(t, "state during the call", w.state(t, "b"), "started")
			if i < 2 {
				return Hold{}, lost
			}
			return Hold{"h1"}, nil
		})
		if i < 2 {
			wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, lost)
		} else if err != nil || h.ID != "h1" {
			t.Errorf("%v, %v", h, err)
		}
	}
	if len(keys) != 3 || keys[0] != call("b", branch.Do).Key() || keys[1] != keys[0] || keys[2] != keys[0] {
		t.Errorf("keys %v", keys)
	}
	_, err := w.charge(calling(t.Context(), "c", branch.Do), "", lost)
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, lost)
	// Its confirm would confirm an unknown outcome.
	wantKind(t, barrier.ConfirmOutside(calling(t.Context(), "c", branch.Confirm), w.DB, w.table,
		func(context.Context, string, Hold) error { t.Error("run"); return nil }), interlock.Definite, branch.ClassFail, barrier.ErrViolation)
	var told []string
	for range 2 {
		ok(t, w.refund(calling(t.Context(), "c", branch.Undo), &told, nil))
		ok(t, w.refund(undo, &told, nil))
	}
	if len(told) != 2 || told[0] != "unknown" || told[1] != "h1" {
		t.Errorf("undone were %v", told)
	}
	_, err = w.charge(calling(t.Context(), "c", branch.Do), "late", nil)
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
}

// testUndoUnanswered: an undo whose answer is lost prevents a later do, and is repeated until it is
// answered.
func testUndoUnanswered(t *testing.T, w world) {
	do, undo := calling(t.Context(), "b", branch.Do), calling(t.Context(), "b", branch.Undo)
	ok(t, txntest.Second(w.charge(do, "h1", nil)))
	var told []string
	lost := errors.New("connection reset")
	wantKind(t, w.refund(undo, &told, lost), interlock.Uncertain, branch.ClassUnknown, lost)
	_, err := w.charge(do, "h2", nil)
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
	ok(t, w.refund(undo, &told, nil))
	ok(t, w.refund(undo, &told, nil))
	if len(told) != 2 || told[0] != "h1" || told[1] != "h1" {
		t.Errorf("undone were %v", told)
	}
	// Confirms behave in the same way.
	ok(t, txntest.Second(w.charge(calling(t.Context(), "c", branch.Do), "h1", nil)))
	confirm := calling(t.Context(), "c", branch.Confirm)
	sold := 0
	sell := func(context.Context, string, Hold) error {
		if sold++; sold == 1 {
			return lost
		}
		return nil
	}
	wantKind(t, barrier.ConfirmOutside(confirm, w.DB, w.table, sell), interlock.Uncertain, branch.ClassUnknown, lost)
	wantKind(t, w.refund(calling(t.Context(), "c", branch.Undo), &told, nil), interlock.Definite, branch.ClassFail, barrier.ErrViolation)
	ok(t, barrier.ConfirmOutside(confirm, w.DB, w.table, sell))
	ok(t, barrier.ConfirmOutside(confirm, w.DB, w.table, sell))
	txntest.Equal(t, "confirmations", sold, 2)
}

// testRefusedInDoubt: a refusal by the first call is final; a refusal after a call with an unknown
// outcome is answered as one, but undone.
func testRefusedInDoubt(t *testing.T, w world) {
	for _, doubt := range []bool{false, true} {
		name := map[bool]string{false: "sure", true: "doubted"}[doubt]
		do := calling(t.Context(), name, branch.Do)
		if doubt {
			_, err := w.charge(do, "", errors.New("timeout"))
			wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, nil)
		}
		for range 2 {
			_, err := w.charge(do, "", branch.Fail(errNoSeat))
			wantKind(t, err, interlock.Definite, branch.ClassFail, nil)
			var refused *barrier.RefusedError
			if !errors.As(err, &refused) || refused.Reason != errNoSeat.Error() {
				t.Errorf("%v", err)
			}
		}
		var told []string
		ok(t, w.refund(calling(t.Context(), name, branch.Undo), &told, nil))
		if doubt != (len(told) == 1 && told[0] == "unknown") {
			t.Errorf("%s: undone were %v", name, told)
		}
	}
	// A Retry is not a refusal, and allows the next call at once.
	_, err := w.charge(calling(t.Context(), "busy", branch.Do), "", branch.Retry(errors.New("busy")))
	wantKind(t, err, interlock.Uncertain, branch.ClassRetry, nil)
	h, err := w.charge(calling(t.Context(), "busy", branch.Do), "h1", nil)
	if err != nil || h.ID != "h1" {
		t.Errorf("%v, %v", h, err)
	}
}

// testOngoing: while a call is outside no other call of its branch goes outside, in any form. After
// its time another one does; the late result of the first is answered by the present state.
func testOngoing(t *testing.T, w world) {
	do, undo := calling(t.Context(), "b", branch.Do), calling(t.Context(), "b", branch.Undo)
	var told []string
	slow := w
	slow.table.Patience = 3 * time.Second // longer than the calls meanwhile take on a busy machine
	_, err := barrier.DoOutside(do, slow.DB, slow.table, seat, func(inside context.Context, _ string) (Hold, error) {
		if _, bounded := inside.Deadline(); !bounded {
			t.Error("the call has no end")
		}
		_, twice := w.charge(do, "h2", nil)
		_, mixed := owned.try(do, w, "h2")
		for what, err := range map[string]error{"do": twice, "do in a transaction": mixed,
			"undo": w.refund(undo, &told, nil), "undo in a transaction": owned.cancel(undo, w)} {
			class, after := branch.ClassOf(err)
			if class != branch.ClassInProgress || after <= 0 || after > slow.table.Patience {
				t.Errorf("%s meanwhile: %v, after %v", what, err, after)
			}
		}
		<-inside.Done()
		ok(t, until(t, func() error { return w.refund(undo, &told, nil) }))
		return Hold{"h1"}, nil // it ignores its context
	})
	wantKind(t, err, interlock.Definite, branch.ClassFail, barrier.ErrCancelled)
	if len(told) != 1 || told[0] != "unknown" {
		t.Errorf("undone were %v", told)
	}
	// A second do returns an answer while the first one is outside for too long.
	again := calling(t.Context(), "c", branch.Do)
	h, err := barrier.DoOutside(again, slow.DB, slow.table, seat, func(inside context.Context, _ string) (Hold, error) {
		<-inside.Done()
		ok(t, until(t, func() error { _, err := w.charge(again, "h2", nil); return err }))
		return Hold{"h1"}, nil
	})
	if err != nil || h.ID != "h2" {
		t.Errorf("%v, %v: two answers to one call", h, err)
	}
}

// until repeats a call while it is ongoing.
func until(t *testing.T, call func() error) error {
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for {
		err := call()
		class, after := branch.ClassOf(err)
		if class != branch.ClassInProgress {
			return err
		}
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return err
		}
	}
}

// testUnstored: an outside effect whose result could not be stored has an unknown outcome, and never
// counts as not done.
func testUnstored(t *testing.T, w world) {
	db, closed, err := databases.Connect(t.Context(), w.Client, w.URL)
	ok(t, err)
	do := calling(t.Context(), "b", branch.Do)
	_, err = barrier.DoOutside(do, db, w.table, seat, func(context.Context, string) (Hold, error) {
		closed()
		return Hold{"h1"}, nil
	})
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, interlock.ErrUncertain)
	ok(t, txntest.Second(w.charge(calling(t.Context(), "huge", branch.Do), "x", nil)))
	_, err = barrier.DoOutside(calling(t.Context(), "text", branch.Do), w.DB, w.table, seat,
		func(context.Context, string) (string, error) { return string(make([]byte, driver.MaxPayload)), nil })
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
	txntest.Equal(t, "state", w.state(t, "text"), "started")
}

// testCallerGone: the answer of the target is stored although the caller has given up.
func testCallerGone(t *testing.T, w world) {
	ctx, cancel := context.WithCancel(calling(t.Context(), "b", branch.Do))
	h, err := barrier.DoOutside(ctx, w.DB, w.table, seat, func(context.Context, string) (Hold, error) {
		cancel()
		return Hold{"h1"}, nil
	})
	if err != nil || h.ID != "h1" || w.state(t, "b") != "tried" {
		t.Errorf("%v, %v, %s", h, err, w.state(t, "b"))
	}
}

// testMixedForms: a branch that is done outside can be undone in a transaction, and vice versa.
func testMixedForms(t *testing.T, w world) {
	_, err := w.charge(calling(t.Context(), "a", branch.Do), "", errors.New("lost"))
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, nil)
	h, err := owned.try(calling(t.Context(), "a", branch.Do), w, "h1") // asks again
	if err != nil || h.ID != "h1" {
		t.Errorf("%v, %v", h, err)
	}
	ok(t, owned.cancel(calling(t.Context(), "a", branch.Undo), w))
	_, err = w.charge(calling(t.Context(), "b", branch.Do), "", errors.New("lost"))
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, nil)
	_, err = owned.try(calling(t.Context(), "b", branch.Do), w, "")
	wantKind(t, err, interlock.Definite, branch.ClassFail, nil)
	ok(t, owned.cancel(calling(t.Context(), "b", branch.Undo), w))
	ok(t, txntest.Second(lent.try(calling(t.Context(), "c", branch.Do), w, "h1")))
	var told []string
	ok(t, w.refund(calling(t.Context(), "c", branch.Undo), &told, nil))
	if len(told) != 1 || told[0] != "h1" {
		t.Errorf("undone were %v", told)
	}
	for name, want := range map[string]map[string]int{"a": {"hold": 1, "free h1": 1}, "b": {"free unknown": 1}, "c": {"hold": 1}} {
		if got := w.effects(t, name); !maps.Equal(got, want) {
			t.Errorf("%s: effects %v, want %v", name, got, want)
		}
	}
}

// testStopped: a process that is stopped within the function of a branch delays the next call of the
// branch by at most Table.Idle. When it wakes up its effects are not committed, and it finds the
// output of the other call.
func testStopped(t *testing.T, w world) {
	w.table.Idle = time.Second
	stopped, wake := make(chan struct{}, 2), make(chan struct{})
	awake := sync.OnceFunc(func() { close(wake) })
	defer awake()
	try := func(db driver.BeginnerAt[driver.SQL], id string, stops bool) (Hold, error) {
		first := stops
		return barrier.Do(calling(context.Background(), "b", branch.Try), db, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) {
			h, err := hold(ctx, tx, id)
			if first {
				first = false
				stopped <- struct{}{}
				<-wake
			}
			return h, err
		})
	}
	var late Hold
	former := testbed.Later(t, bound, func() (err error) { late, err = try(w.DB, "former", true); return err })
	select {
	case <-stopped:
	case <-time.After(bound):
		t.Fatal("the function does not run")
	}
	var h Hold
	next := testbed.Later(t, bound, func() (err error) { h, err = try(w.Again(t), "next", false); return err })
	if ok(t, next()); h.ID != "next" {
		t.Errorf("the next call returned %q", h.ID)
	}
	awake()
	if ok(t, former()); late.ID != "next" {
		t.Errorf("the stopped call returned %q", late.ID)
	}
	txntest.Equal(t, "effects", databases.One[int64](t, w.DB, `select count(*) from effect`), 1)
}
