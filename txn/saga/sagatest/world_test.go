package sagatest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	testbed.Main(m)
}

var ok = txntest.OK

// shop is a world without a guard: each call of its steps has an effect.
type shop struct {
	mu    sync.Mutex
	stock map[string]int
	seen  map[string]bool // by keys of calls
}

func newShop() *shop {
	return &shop{stock: map[string]int{"a": 10, "b": 10, "c": 10}, seen: map[string]bool{}}
}

func (s *shop) snapshot() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.stock)
}

// add changes a number at each call.
func (s *shop) add(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stock[key] += n
}

// first reports whether this is the first call of a key.
func (s *shop) first(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.seen[key] = true }()
	return !s.seen[key]
}

func (s *shop) saw(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[key]
}

type action = saga.Action[int, string]

// good is a step on a guarded world: it takes from a stock.
func good(w *World, name string) action {
	return take(w, name).Undo("un"+name, func(ctx context.Context, n int, _ *string) error {
		return w.Undo(ctx, func(v Values) error {
			v.Add(name, n)
			return nil
		})
	})
}

// take is good without its undo. Each index takes from a separate stock.
func take(w *World, name string) action {
	return saga.Step(name, func(ctx context.Context, n int) (string, error) {
		return Effect(ctx, w, func(v Values) (string, error) { return fmt.Sprint(v.Add(name, -n)), nil })
	})
}

// worldly returns scenes of a saga on a world.
func worldly(define func(w *World) saga.Definition[int]) func() Scene[int] {
	return func() Scene[int] {
		w := &World{}
		for _, key := range []string{"a", "b", "c", "p", "z"} {
			w.Set(key, "10")
		}
		return Scene[int]{Saga: define(w), Input: 2, Snapshot: w.Snapshot}
	}
}

// explored returns the findings, and the number of runs.
func explored(t *testing.T, scene func() Scene[int]) ([]Finding, int) {
	t.Helper()
	e := newExplorer(t, func() set { return built(scene()) })
	found, err := e.explore()
	ok(t, err)
	return found, e.Runs
}

func TestWorldHasOneEffectForAKey(t *testing.T) {
	w := &World{}
	w.Set("x", "5")
	do := call("t", branch.Do)
	for range 2 {
		n, err := Effect(do, w, func(v Values) (int, error) { return v.Add("x", 1), nil })
		if n != 6 || err != nil || w.Get("x") != "6" {
			t.Errorf("%d, %v, %s", n, err, w.Get("x"))
		}
	}
	for range 2 {
		ok(t, w.Undo(call("t", branch.Undo), func(v Values) error { v.Add("x", -1); return nil }))
	}
	if w.Snapshot() != "x: 5\n" {
		t.Errorf("%q", w.Snapshot())
	}
}

func TestWorldRefusesBehindTheUndo(t *testing.T) {
	w := &World{}
	ok(t, w.Undo(call("t", branch.Undo), func(Values) error { t.Error("nothing is there to undo"); return nil }))
	_, err := Effect(call("t", branch.Do), w, func(v Values) (int, error) { return v.Add("x", 1), nil })
	if class, _ := branch.ClassOf(err); err == nil || class != branch.ClassFail || w.Snapshot() != "" {
		t.Errorf("%v, %q", err, w.Snapshot())
	}
	if _, err := Effect(call("u", branch.Do), w, func(v Values) (int, error) { return v.Add("x", 1), nil }); err != nil {
		t.Errorf("another transaction: %v", err)
	}
}

func TestWorldTakesBackWhatFails(t *testing.T) {
	w := &World{}
	broken, calls := errors.New("broken"), 0
	act := func(err error) error {
		_, err = Effect(call("t", branch.Do), w, func(v Values) (int, error) { calls++; return v.Add("x", 1), err })
		return err
	}
	if err := act(broken); !errors.Is(err, broken) || w.Get("x") != "" {
		t.Errorf("%v, %q", err, w.Get("x"))
	}
	ok(t, act(nil)) // a call without an answer is repeated
	undo := call("t", branch.Undo)
	if err := w.Undo(undo, func(v Values) error { v.Add("x", -1); return broken }); !errors.Is(err, broken) || w.Get("x") != "1" {
		t.Errorf("%v, %q", err, w.Get("x"))
	}
	ok(t, w.Undo(undo, func(v Values) error { v.Add("x", -1); return nil }))
	if w.Get("x") != "0" || calls != 2 {
		t.Errorf("%q after %d calls", w.Get("x"), calls)
	}

	for range 2 { // a refusal is an answer
		if _, err := Effect(call("r", branch.Do), w, func(Values) (int, error) { calls++; return 0, branch.Fail(broken) }); !errors.Is(err, broken) || calls != 3 {
			t.Errorf("%v, %d calls", err, calls)
		}
	}
	ok(t, w.Undo(call("r", branch.Undo), func(Values) error { t.Error("a refusal is not undone"); return nil }))
}

func TestWorldOutsideOfACall(t *testing.T) {
	w := &World{}
	_, err := Effect(t.Context(), w, func(Values) (int, error) { t.Error("it was done"); return 0, nil })
	for _, err := range []error{err, w.Undo(call("t", branch.Do), func(Values) error { t.Error("it was done"); return nil })} {
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
	_, _ = Effect(call("t", branch.Do), w, func(v Values) (int, error) { return v.Add("x", 1), nil })
}

// call returns the context of a call of a step.
func call(transaction string, o branch.Operation) context.Context {
	return branch.With(context.Background(), branch.Call{Transaction: transaction, Branch: "s", Operation: o, Attempt: 1})
}
