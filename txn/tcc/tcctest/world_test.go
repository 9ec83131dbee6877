package tcctest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/tcc"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	testbed.Main(m)
}

var ok = txntest.OK

// shelf is a sound participant on a world: an item with free, held and sold units.
type shelf struct {
	w    *World
	item string
}

func (s shelf) Try(ctx context.Context, n int, until time.Time) (string, error) {
	return Hold(ctx, s.w, until, func(v Values) (string, error) {
		if v.Add(s.item, -n) < 0 {
			return "", branch.Fail(errors.New("too few"))
		}
		return fmt.Sprintf("%d, %d held", n, v.Add(s.item+" held", n)), nil
	})
}

func (s shelf) Confirm(ctx context.Context, n int, _ string) error {
	return s.w.Confirm(ctx, func(v Values) error {
		v.Add(s.item+" held", -n)
		v.Add(s.item+" sold", n)
		return nil
	})
}

func (s shelf) Cancel(ctx context.Context, n int, _ *string) error {
	return s.w.Cancel(ctx, func(v Values) error {
		v.Add(s.item+" held", -n)
		v.Add(s.item, n)
		return nil
	})
}

// room is a separate participant, with a row for each hold. It is sound; unsound ones replace one of
// its methods.
type room struct {
	mu               sync.Mutex
	free, held, sold int
	states           map[string]string // by transaction and branch: held, confirmed or cancelled
	until            map[string]time.Time

	try     func(ctx context.Context, id string, n int) error
	confirm func(ctx context.Context, id string, n int) error
	cancel  func(ctx context.Context, id string, n int, h *string) error
	sweep   func(ctx context.Context, ask tcc.Ask) error
}

var errBusy = errors.New("busy")

func newRoom(free int) *room {
	r := &room{free: free, states: map[string]string{}, until: map[string]time.Time{}}
	r.try, r.confirm, r.cancel, r.sweep = r.takes, r.sells, r.frees, r.sweeps
	return r
}

func (r *room) Try(ctx context.Context, n int, until time.Time) (string, error) {
	id := key(ctx)
	r.mu.Lock()
	r.until[id] = until
	r.mu.Unlock()
	return "room", r.locked(func() error { return r.try(ctx, id, n) })
}

func (r *room) Confirm(ctx context.Context, n int, _ string) error {
	return r.locked(func() error { return r.confirm(ctx, key(ctx), n) })
}

func (r *room) Cancel(ctx context.Context, n int, h *string) error {
	return r.locked(func() error { return r.cancel(ctx, key(ctx), n, h) })
}

func (r *room) locked(do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return do()
}

func key(ctx context.Context) string {
	c := branch.From(ctx)
	return c.Transaction + "/" + c.Branch
}

func (r *room) takes(_ context.Context, id string, n int) error {
	switch {
	case r.states[id] == held || r.states[id] == confirmed:
		return nil
	case r.states[id] == cancelled || r.free < n:
		return branch.Fail(errBusy)
	}
	r.free, r.held, r.states[id] = r.free-n, r.held+n, held
	return nil
}

func (r *room) sells(_ context.Context, id string, n int) error {
	switch r.states[id] {
	case held:
		r.held, r.sold, r.states[id] = r.held-n, r.sold+n, confirmed
	case confirmed:
	default:
		return branch.Fail(errBusy)
	}
	return nil
}

func (r *room) frees(_ context.Context, id string, n int, _ *string) error {
	if r.states[id] == held {
		r.held, r.free = r.held-n, r.free+n
	}
	r.states[id] = cancelled
	return nil
}

// overdue returns the transactions with expired holds.
func (r *room) overdue() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, until := range r.until {
		if r.states[id] == held && !time.Now().Before(until) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *room) sweeps(ctx context.Context, ask tcc.Ask) error {
	for _, o := range r.overdue() {
		decision, err := ask(ctx, o[:len(o)-2], o[len(o)-1:])
		if err != nil {
			return err
		}
		if decision == tcc.Cancel {
			_ = r.locked(func() error { return r.frees(ctx, o, wanted, nil) })
		}
	}
	return nil
}

// wanted is the number of units of each transaction.
const wanted = 2

func (r *room) snapshot() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("room free: %d\nroom held: %d\nroom sold: %d\n", r.free, r.held, r.sold)
}

// explored returns the findings, and the number of runs.
func explored(t *testing.T, scene func() Scene) ([]Finding, int) {
	t.Helper()
	e := newExplorer(t, scene)
	found, err := e.explore()
	ok(t, err)
	return found, e.Runs
}

// call returns the context of a call of a branch.
func call(transaction string, o branch.Operation) context.Context {
	return branch.With(context.Background(), branch.Call{Transaction: transaction, Branch: "s", Operation: o, Attempt: 1})
}

func later() time.Time { return time.Now().Add(time.Minute) }

func take(transaction string, w *World) (int, error) {
	return Hold(call(transaction, branch.Try), w, later(), func(v Values) (int, error) { return v.Add("x", -1), nil })
}

func add(n int) func(v Values) error { return func(v Values) error { v.Add("x", n); return nil } }

func TestWorldHoldsOnceForABranch(t *testing.T) {
	w := &World{}
	w.Set("x", "5")
	for range 2 {
		if n, err := take("t", w); n != 4 || err != nil || w.Get("x") != "4" {
			t.Errorf("%d, %v, %s", n, err, w.Get("x"))
		}
	}
	for range 2 {
		ok(t, w.Confirm(call("t", branch.Confirm), func(v Values) error { v.Add("sold", 1); return nil }))
	}
	if n, err := take("t", w); n != 4 || err != nil || w.Snapshot() != "sold: 1\nx: 4\n" {
		t.Errorf("after its confirmation: %d, %v, %q", n, err, w.Snapshot())
	}
	if err := w.Cancel(call("t", branch.Cancel), add(1)); !errors.Is(err, errConfirmed) || !(rehearsal.Answer{Err: err}).Refuses() {
		t.Errorf("cancelled what is confirmed: %v", err)
	}
}

func TestWorldCancels(t *testing.T) {
	w := &World{}
	ok(t, txntest.Second(take("t", w)))
	for range 2 {
		ok(t, w.Cancel(call("t", branch.Cancel), add(1)))
	}
	if w.Snapshot() != "" {
		t.Errorf("%q", w.Snapshot())
	}
	ok(t, w.Cancel(call("empty", branch.Cancel), add(1)))
	for _, id := range []string{"t", "empty"} {
		if _, err := take(id, w); !(rehearsal.Answer{Err: err}).Refuses() || !errors.Is(err, errBehind) || w.Snapshot() != "" {
			t.Errorf("%s after its cancellation: %v, %q", id, err, w.Snapshot())
		}
		if err := w.Confirm(call(id, branch.Confirm), add(-1)); !(rehearsal.Answer{Err: err}).Refuses() || w.Snapshot() != "" {
			t.Errorf("%s confirmed after its cancellation: %v, %q", id, err, w.Snapshot())
		}
	}
	if err := w.Confirm(call("new", branch.Confirm), add(-1)); !errors.Is(err, errNotHeld) {
		t.Errorf("confirmed what was never tried: %v", err)
	}
}

func TestWorldTakesBackWhatFails(t *testing.T) {
	w := &World{}
	broken, calls := errors.New("broken"), 0
	try := func(id string, err error) error {
		_, err = Hold(call(id, branch.Try), w, later(), func(v Values) (int, error) { calls++; return v.Add("x", 1), err })
		return err
	}
	if err := try("t", broken); !errors.Is(err, broken) || w.Get("x") != "" {
		t.Errorf("%v, %q", err, w.Get("x"))
	}
	ok(t, try("t", nil)) // a call without an answer is repeated
	for range 2 {        // a refusal is an answer
		if err := try("r", branch.Fail(broken)); !errors.Is(err, broken) || calls != 3 || w.Get("x") != "1" {
			t.Errorf("%v, %d calls, %q", err, calls, w.Get("x"))
		}
	}
	fails := func(v Values) error { v.Add("x", 9); return broken }
	if err := w.Confirm(call("t", branch.Confirm), fails); !errors.Is(err, broken) || w.Get("x") != "1" {
		t.Errorf("%v, %q", err, w.Get("x"))
	}
	if err := w.Cancel(call("t", branch.Cancel), fails); !errors.Is(err, broken) || w.Get("x") != "1" {
		t.Errorf("%v, %q", err, w.Get("x"))
	}
	ok(t, w.Cancel(call("t", branch.Cancel), add(-1)))
	ok(t, w.Cancel(call("r", branch.Cancel), add(-1))) // a refusal holds nothing
	if w.Snapshot() != "" {
		t.Errorf("%q", w.Snapshot())
	}
}

// TestWorldSweeps: Sweep cancels expired holds that will not be confirmed.
func TestWorldSweeps(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		w, asked := &World{}, []string{}
		for _, id := range []string{"dropped", "kept"} {
			ok(t, txntest.Second(take(id, w)))
		}
		ask := func(_ context.Context, id, _ string) (tcc.Decision, error) {
			asked = append(asked, id)
			return map[string]tcc.Decision{"dropped": tcc.Cancel, "kept": tcc.Confirm}[id], nil
		}
		free := func(ctx context.Context) error { return w.Cancel(ctx, add(1)) }
		ok(t, w.Sweep(t.Context(), ask, free))
		if len(asked) > 0 {
			t.Errorf("asked about %v before their time", asked)
		}
		time.Sleep(time.Minute)
		if _, err := take("late", w); err != nil {
			t.Error(err)
		}
		if err := w.Sweep(t.Context(), func(context.Context, string, string) (tcc.Decision, error) { return tcc.Cancel, errBusy }, free); !errors.Is(err, errBusy) || w.Get("x") != "-3" {
			t.Errorf("no coordinator answered: %v, %s", err, w.Get("x"))
		}
		ok(t, w.Sweep(t.Context(), ask, free))
		if fmt.Sprint(asked) != "[dropped kept]" || w.Get("x") != "-2" {
			t.Errorf("asked about %v: %s", asked, w.Get("x"))
		}
		_, err := Hold(call("over", branch.Try), w, time.Now(), func(v Values) (int, error) { return v.Add("x", -1), nil })
		if !errors.Is(err, errLate) || !(rehearsal.Answer{Err: err}).Refuses() || w.Get("x") != "-2" {
			t.Errorf("its time was over: %v", err)
		}
	})
}

func TestWorldOutsideOfACall(t *testing.T) {
	w := &World{}
	_, err := Hold(t.Context(), w, later(), func(Values) (int, error) { t.Error("it was done"); return 0, nil })
	did := func(Values) error { t.Error("it was done"); return nil }
	for _, err := range []error{err, w.Cancel(call("t", branch.Try), did), w.Confirm(call("t", branch.Cancel), did)} {
		if interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v", err)
		}
	}
	w.Set("x", "red")
	defer func() {
		if recover() == nil {
			t.Error("a colour was added to")
		}
	}()
	_, _ = take("t", w)
}
