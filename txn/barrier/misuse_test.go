package barrier_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// nobody is a database that receives no request.
type nobody struct{ driver.BeginnerAt[driver.SQL] }

func (nobody) BeginAt(context.Context, driver.Isolation) (driver.Tx[driver.SQL], error) {
	panic("the database is asked")
}

func take(context.Context, driver.SQL) (Hold, error) { return Hold{"h1"}, nil }

// TestMisuse: errors that are detected without a request to a database.
func TestMisuse(t *testing.T) {
	var table barrier.Table
	with := func(change func(*branch.Call)) context.Context {
		c := call("b", branch.Do)
		change(&c)
		return branch.With(t.Context(), c)
	}
	long := strings.Repeat("x", 256)
	for what, ctx := range map[string]context.Context{
		"no call":             t.Context(),
		"no transaction":      with(func(c *branch.Call) { c.Transaction = "" }),
		"long transaction":    with(func(c *branch.Call) { c.Transaction = long[:driver.MaxTransaction+1] }),
		"no branch":           with(func(c *branch.Call) { c.Branch = "" }),
		"long branch":         with(func(c *branch.Call) { c.Branch = long }),
		"NUL":                 with(func(c *branch.Call) { c.Branch = "a\x00b" }),
		"no UTF-8":            with(func(c *branch.Call) { c.Transaction = "\xff" }),
		"long step":           with(func(c *branch.Call) { c.Step = long }),
		"no operation":        with(func(c *branch.Call) { c.Operation = "" }),
		"unknown operation":   with(func(c *branch.Call) { c.Operation = "steal" }),
		"operation of others": with(func(c *branch.Call) { c.Operation = branch.Undo }),
		"no begin":            with(func(c *branch.Call) { c.Begun = time.Time{} }),
	} {
		_, err := barrier.Do(ctx, nobody{}, table, seat, take)
		_, lent := barrier.DoIn(ctx, driver.SQL(nil), table, seat, func(context.Context) (Hold, error) { panic("run") })
		_, out := barrier.DoOutside(ctx, nobody{}, table, seat, func(context.Context, string) (Hold, error) { panic("run") })
		for form, err := range map[string]error{"owned": err, "lent": lent, "outside": out} {
			if err == nil || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s, %s: %v", what, form, err)
			}
		}
	}
	ctx := calling(t.Context(), "b", branch.Do)
	undo := calling(t.Context(), "b", branch.Undo)
	var none driver.BeginnerAt[driver.SQL]
	_, noInput := barrier.Do(ctx, nobody{}, table, make(chan int), take)
	_, noFunction := barrier.Do[driver.SQL, Hold](ctx, nobody{}, table, seat, nil)
	_, noDatabase := barrier.Do(ctx, none, table, seat, take)
	_, noMark := barrier.Forget(t.Context(), none, table, begun, 0)
	_, negative := barrier.Forget(t.Context(), nobody{}, table, begun, -1)
	p := &barrier.Participant[driver.SQL, Seat, Hold]{DB: nobody{}}
	_, noDo := p.Call(ctx, []byte(`{}`))
	p.Do = func(context.Context, driver.SQL, Seat) (Hold, error) { panic("run") }
	_, noJSON := p.Call(ctx, []byte(`{`))
	_, nothing := p.Call(t.Context(), nil)
	for what, err := range map[string]error{
		"input": noInput, "function": noFunction, "database": noDatabase, "database to forget": noMark, "limit": negative,
		"participant's function": noDo, "JSON": noJSON, "call": nothing,
		"confirm as undo":  barrier.Confirm(undo, nobody{}, table, func(context.Context, driver.SQL, Hold) error { panic("run") }),
		"undo of nothing":  barrier.Undo[driver.SQL, Hold](undo, nobody{}, table, nil),
		"undo as do":       barrier.Undo(ctx, nobody{}, table, func(context.Context, driver.SQL, *Hold) error { panic("run") }),
		"outside as do":    barrier.UndoOutside(ctx, nobody{}, table, func(context.Context, string, *Hold) error { panic("run") }),
		"confirm, no call": barrier.ConfirmIn(t.Context(), driver.SQL(nil), table, func(context.Context, Hold) error { panic("run") }),
	} {
		if err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// overHTTP: a coordinator that calls with another input than the applied one detects that from the
// answer.
func overHTTP(t *testing.T, w world, ctx context.Context) {
	t.Helper()
	p := barrier.Participant[driver.SQL, Seat, Hold]{DB: w.DB, Table: w.table, Do: func(context.Context, driver.SQL, Seat) (Hold, error) {
		t.Error("run")
		return Hold{}, nil
	}}
	server := httptest.NewServer(branchhttp.Handler(p.Call))
	defer server.Close()
	call := branch.From(ctx)
	call.Attempt = 1
	_, err := branchhttp.Caller{Client: server.Client()}.Post(t.Context(), server.URL, call, []byte(`{"Row":13}`))
	wantKind(t, err, interlock.Uncertain, branch.ClassUnknown, branch.ErrOtherInput)
	if out, err := (branchhttp.Caller{Client: server.Client()}).Post(t.Context(), server.URL, call, []byte(`{"Row":12}`)); err != nil || string(out) != `{"ID":"h1"}` {
		t.Errorf("%s, %v", out, err)
	}
}

// testBadInput: errors that a database detects; nothing runs, and existing rows do not change.
func testBadInput(t *testing.T, w world) {
	try := calling(t.Context(), "b", branch.Try)
	_, err := owned.try(try, w, "h1")
	ok(t, err)
	never := func(context.Context, driver.SQL) (Hold, error) { t.Error("run"); return Hold{}, nil }
	var mismatch *barrier.MismatchError
	_, err = barrier.Do(try, w.DB, w.table, Seat{13}, never)
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
	if !errors.As(err, &mismatch) {
		t.Errorf("%v", err)
	}
	overHTTP(t, w, try)
	// The stored output is of another type.
	err = barrier.Confirm(calling(t.Context(), "b", branch.Confirm), w.DB, w.table, func(context.Context, driver.SQL, []int) error { t.Error("run"); return nil })
	wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
	// An output that a branchhttp.Handler does not send undoes the effect.
	for name, size := range map[string]int{"largest": branchhttp.MaxBody, "larger": branchhttp.MaxBody + 1} {
		_, err = barrier.Do(calling(t.Context(), name, branch.Try), w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (string, error) {
			return strings.Repeat("x", size-len(`""`)), effect(ctx, tx, name, "hold")
		})
		if got := len(w.effects(t, name)); name == "largest" && (got != 1 || err != nil) || name == "larger" && got != 0 {
			t.Errorf("%s: %d effects, %v", name, got, err)
		} else if name == "larger" {
			wantKind(t, err, interlock.Bug, branch.ClassUnknown, nil)
		}
	}
	// Existing rows still answer.
	h, err := owned.try(try, w, "h2")
	if err != nil || h.ID != "h1" {
		t.Errorf("%v, %v", h, err)
	}
	// A missing table, and names that are data.
	_, err = owned.try(try, world{w.DB, barrier.Table{Name: "nowhere"}, w.DB}, "h1")
	if err == nil || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "with Create") {
		t.Errorf("%v", err)
	}
	odd := branch.With(t.Context(), branch.Call{Transaction: `t'"; drop table effect --`, Branch: "b?{rows}$1%s", Step: "Ä", Operation: branch.Do, Begun: begun})
	for range 2 {
		h, err := barrier.Do(odd, w.DB, w.table, seat, take)
		if err != nil || h.ID != "h1" {
			t.Errorf("%v, %v", h, err)
		}
	}
	// Names are compared by their bytes.
	for _, name := range []string{"case", "CASE", "case "} {
		ran := false
		_, err := barrier.Do(calling(t.Context(), name, branch.Do), w.DB, w.table, seat, func(context.Context, driver.SQL) (Hold, error) {
			ran = true
			return Hold{}, nil
		})
		if ok(t, err); !ran {
			t.Errorf("%q was taken for another", name)
		}
	}
}

// testClosed: a closed database, or a caller that has left, leaves nothing.
func testClosed(t *testing.T, w world) {
	ctx, cancel := context.WithCancel(calling(t.Context(), "b", branch.Try))
	_, err := barrier.Do(ctx, w.DB, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) {
		err := effect(ctx, tx, "b", "hold")
		cancel()
		return Hold{"h1"}, err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := w.rows(t); n != 0 || len(w.effects(t, "b")) != 0 {
		t.Errorf("%d rows, effects %v", n, w.effects(t, "b"))
	}
	db, closed, err := databases.Connect(t.Context(), w.Client, w.URL)
	ok(t, err)
	closed()
	_, err = barrier.Do(calling(t.Context(), "b", branch.Try), db, w.table, seat, take)
	if err == nil || interlock.Kind(err) == interlock.Uncertain {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
}
