package countermeasure_test

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

func (w world) log(record, id, data string) (v countermeasure.Verdict, err error) {
	err = w.in(func(ctx context.Context, db driver.SQL) (err error) {
		v, err = w.file.Log(ctx, db, countermeasure.Operation{Record: record, ID: id, Data: []byte(data)})
		return err
	})
	return v, err
}

func (w world) cancel(record, id string) (v countermeasure.Verdict, data string) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		verdict, logged, err := w.file.Cancel(ctx, db, record, id)
		v, data = verdict, string(logged)
		return err
	})
	return v, data
}

// testVerdicts: an operation is done once and undone once, and never done after its
// cancellation.
func testVerdicts(w world) {
	logged := func(record, id, data string, want countermeasure.Verdict) {
		w.Helper()
		if v, err := w.log(record, id, data); v != want || err != nil {
			w.Errorf("log %s: %v, %v; want %v", id, v, err, want)
		}
	}
	cancelled := func(record, id string, want countermeasure.Verdict, data string) {
		w.Helper()
		if v, d := w.cancel(record, id); v != want || d != data {
			w.Errorf("cancel %s: %v, %q; want %v, %q", id, v, d, want, data)
		}
	}
	logged("r", "one", "x", countermeasure.Apply)
	logged("r", "one", "x", countermeasure.Repeated)
	logged("r2", "one", "", countermeasure.Apply)
	logged("r2", "one", "", countermeasure.Repeated)
	logged("r", "ONE", "y", countermeasure.Apply)
	cancelled("r", "one", countermeasure.Reverse, "x")
	cancelled("r", "one", countermeasure.Repeated, "")
	logged("r", "one", "x", countermeasure.Cancelled)
	cancelled("r", "two", countermeasure.Pending, "")
	cancelled("r", "two", countermeasure.Repeated, "")
	logged("r", "two", "z", countermeasure.Cancelled)
	cancelled("r", "two", countermeasure.Repeated, "")
	for _, id := range []string{"ONE", "one"} {
		_, err := w.log("r", id, "other")
		if e := wants[*countermeasure.ReusedError](w, err, interlock.Definite); e.ID != id || e.Record != "r" {
			w.Errorf("%+v", e)
		}
	}
	logged("r", "last", "\x00\xff?", countermeasure.Apply)
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		all, err := w.file.Standing(ctx, db, "r")
		if len(all) != 2 || all[0].ID != "ONE" || string(all[0].Data) != "y" || all[1].ID != "last" || string(all[1].Data) != "\x00\xff?" || all[1].Record != "r" {
			w.Errorf("%+v", all)
		}
		return err
	})
}

// testReplay: a cancellation of an operation that cannot be reversed computes the record again
// without it, in the order of the log.
func testReplay(w world) {
	apply := map[string]func(int64) int64{"+50": func(n int64) int64 { return n + 50 }, "*2": func(n int64) int64 { return n * 2 }}
	replay := func(standing []countermeasure.Operation) int64 {
		n := int64(100)
		for _, o := range standing {
			n = apply[string(o.Data)](n)
		}
		return n
	}
	for _, id := range []string{"first +50", "second *2", "third +50"} {
		ok(w, txntest.Second(w.log("price", id, strings.Fields(id)[1])))
	}
	for _, c := range []struct {
		cancel string
		want   int64
	}{{"", 350}, {"first +50", 250}, {"third +50", 200}} {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
			if c.cancel != "" {
				if v, _, err := w.file.Cancel(ctx, db, "price", c.cancel); v != countermeasure.Reverse || err != nil {
					w.Errorf("%v, %v", v, err)
				}
			}
			standing, err := w.file.Standing(ctx, db, "price")
			if got := replay(standing); got != c.want {
				w.Errorf("without %q: %d, want %d", c.cancel, got, c.want)
			}
			return err
		})
	}
}

// testLogIsInOrder: an operation on a record waits for the previous one, so that the log has the
// order of the effects; operations on other records do not wait.
func testLogIsInOrder(w world) {
	first := w.Begun(w.T, driver.SessionIsolation)
	_, err := w.file.Log(w.Context(), first, countermeasure.Operation{Record: "r", ID: "first"})
	ok(w, err)
	second := testbed.Later(w, bound, func() error { _, err := w.log("r", "second", ""); return err })
	w.blocked("the second one")
	ok(w, txntest.Second(w.log("other", "second", "")))
	ok(w, first.Rollback(w.Context()))
	ok(w, second())
	if v, err := w.log("r", "first", ""); v != countermeasure.Apply || err != nil {
		w.Errorf("what was rolled back: %v, %v", v, err)
	}
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		all, err := w.file.Standing(ctx, db, "r")
		if len(all) != 2 || all[0].ID != "second" || all[1].ID != "first" {
			w.Errorf("%+v", all)
		}
		return err
	})
}

// testBadOperations: invalid operations return a clear error, and are not logged.
func testBadOperations(w world) {
	long := strings.Repeat("x", driver.MaxName+1)
	for _, o := range []countermeasure.Operation{
		{}, {Record: "r"}, {ID: "o"}, {Record: long, ID: "o"}, {Record: "r", ID: long}, {Record: "r", ID: "\x00"}, {Record: "\xff", ID: "o"},
		{Record: "r", ID: "o", Data: make([]byte, driver.MaxValue+1)},
	} {
		err := w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.file.Log(ctx, db, o); return err })
		wantKind(w, err, interlock.Bug, nil)
	}
	err := w.in(func(ctx context.Context, db driver.SQL) error {
		_, _, err := w.file.Cancel(ctx, db, "r", "")
		return err
	})
	wantKind(w, err, interlock.Bug, nil)
	err = w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.file.Standing(ctx, db, ""); return err })
	wantKind(w, err, interlock.Bug, nil)
	_, err = w.file.Log(w.Context(), nil, countermeasure.Operation{Record: "r", ID: "o"})
	wantKind(w, err, interlock.Bug, nil)
	most := strings.Repeat("x", driver.MaxName)
	ok(w, txntest.Second(w.log(most, most, strings.Repeat("y", driver.MaxValue))))
	elsewhere := countermeasure.VersionFile{Name: "nowhere"}
	err = w.in(func(ctx context.Context, db driver.SQL) error {
		_, err := elsewhere.Log(ctx, db, countermeasure.Operation{Record: "r", ID: "o"})
		return err
	})
	if wantKind(w, err, interlock.Definite, nil); !strings.Contains(err.Error(), "Create") {
		w.Error(err)
	}
	// A difference that was written into the log by hand.
	c := branch.Call{Transaction: "t", Branch: "b", Operation: branch.Undo}
	ok(w, txntest.Second(w.log("account/balance/a", countermeasure.OperationID(c), "no number")))
	wantKind(w, w.applied("a", c, 1), interlock.Bug, nil)
	wantKind(w, w.applied("a", branch.Call{Operation: branch.Do}, 1), interlock.Bug, nil)
	// The longest names that a call may have, which differ at their ends.
	for n, end := range []string{"1", "2"} {
		longest := branch.Call{Transaction: strings.Repeat("%", driver.MaxTransaction), Branch: strings.Repeat("%", 254) + end, Operation: branch.Do}
		ok(w, w.applied("a", longest, 1))
		ok(w, w.applied("a", longest, 1))
		txntest.Equal(w, "balance", w.balance("a"), 101+int64(n))
	}
}

// testOldOperationsAreForgotten: the oldest first; a repeated call keeps its operation.
func testOldOperationsAreForgotten(w world) {
	for _, id := range []string{"a", "b", "c", "d"} {
		ok(w, txntest.Second(w.log("r "+id, id, "")))
	}
	sweep := func(age time.Duration, limit int) (n int64) {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
			n, err = w.file.Sweep(ctx, db, age, limit)
			return err
		})
		return n
	}
	txntest.Equal(w, "young ones forgotten", sweep(time.Hour, 9), 0)
	w.Exec(w.T, `update interlock_version_file set logged_at = logged_at - interval `+on(w, `'2 hours'`, `2 hour`))
	if v, _ := w.cancel("r d", "d"); v != countermeasure.Reverse {
		w.Error(v)
	}
	if a, b, c := sweep(time.Hour, 2), sweep(time.Hour, 2), sweep(time.Hour, 2); a != 2 || b != 1 || c != 0 {
		w.Errorf("%d, %d, %d forgotten", a, b, c)
	}
	if w.Dialect == driver.Postgres {
		p := &databases.Planned{BeginnerAt: w.DB}
		p.Do(w, func(ctx context.Context, db driver.SQL) error { _, err := w.file.Sweep(ctx, db, 1, 1); return err })
		p.Want(w, "logged_at")
	}
	for id, want := range map[string]countermeasure.Verdict{"a": countermeasure.Apply, "d": countermeasure.Cancelled} {
		if v, err := w.log("r "+id, id, ""); v != want || err != nil {
			w.Errorf("%s: %v, %v", id, v, err)
		}
	}
	for _, err := range []error{
		w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.file.Sweep(ctx, db, -1, 1); return err }),
		w.in(func(ctx context.Context, db driver.SQL) error { _, err := w.file.Sweep(ctx, db, 1, 0); return err }),
	} {
		wantKind(w, err, interlock.Bug, nil)
	}
}
