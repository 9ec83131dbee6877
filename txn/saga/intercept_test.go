package saga

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// heard is an interceptor that records its calls.
type heard struct{ keys txntest.Events[string] }

func (h *heard) around(ctx context.Context, call func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
	output, err := call(ctx)
	h.keys.Add(From(ctx).Key() + " " + string(output))
	return output, err
}

// TestInterceptorStandsAroundEachCall: of actions and undos, of all kinds of definitions,
// and not of the original definition.
func TestInterceptorStandsAroundEachCall(t *testing.T) {
	for name, define := range map[string]func(g *target) Definition[string]{
		"fixed": func(g *target) Definition[string] {
			return Define("order", Parallel(g.undoable("a")), g.undoable("b", always(Fail(errSeat))...))
		},
		"list": func(g *target) Definition[string] {
			a, b := g.undoable("a"), g.undoable("b", always(Fail(errSeat))...)
			return DefineList("order", func(string) ([]Stage[string], error) { return []Stage[string]{a, b}, nil }, a, b)
		},
		"function": func(g *target) Definition[string] {
			a, b := g.undoable("a"), g.undoable("b", always(Fail(errSeat))...)
			return DefineFunc("order", func(s *Run, in string) error {
				_, err := a.Do(s, in)
				if err == nil {
					_, err = b.Do(s, in)
				}
				return err
			}, a, b)
		},
	} {
		runBubble(t, name, func(t *testing.T) {
			g, h := &target{}, &heard{}
			plain := define(g)
			intercepted := plain.Intercept(h.around)
			r := serve(t, nil, 1, nil, intercepted)
			_, err := intercepted.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			same(t, "heard", h.keys.All(), `1/a/do "in>a"`, "1/b/do ", "1/a/undo ")

			other := serve(t, nil, 1, nil, plain)
			_, err = plain.Do(t.Context(), other.engine, "2", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			if all := h.keys.All(); len(all) != 3 {
				t.Errorf("the plain one is intercepted: %v", all)
			}
		})
	}
}

// TestStepTxIsNotIntercepted: it is refused, and nothing begins.
func TestStepTxIsNotIntercepted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := &heard{}
		tx := StepTx("tx", noBeginner{t}, &journal.Table[driver.SQL]{}, func(context.Context, driver.Tx[driver.SQL], string) (string, error) {
			t.Error("it was called")
			return "", nil
		})
		d := Define("order", tx.Pivot()).Intercept(h.around)
		r := serve(t, txntest.NewJournal(), 1, nil, d)
		o, err := d.Do(t.Context(), r.engine, "1", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		if want := `tx: step "tx" commits in a transaction of a database, and cannot be intercepted`; o.Reason != want || slices.Contains(h.keys.All(), "1/tx/do ") {
			t.Errorf("%q", o.Reason)
		}
	})
}

// noBeginner is a database in which nothing may begin.
type noBeginner struct{ t *testing.T }

func (n noBeginner) Begin(context.Context) (driver.Tx[driver.SQL], error) {
	n.t.Error("a transaction was begun")
	return nil, errors.New("none")
}

// TestInterceptorWithoutOutput: an action that was answered without an output is done, also
// by a former owner, and its undo gets none.
func TestInterceptorWithoutOutput(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.undoable("b", InProgress(2*time.Minute), Fail(errSeat))).Intercept(
			func(ctx context.Context, call func(context.Context) (json.RawMessage, error)) (json.RawMessage, error) {
				_, err := call(ctx)
				return nil, err
			})
		r := serve(t, nil, 1, nil, d)
		o, err := d.Do(t.Context(), r.engine, "1", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, "effects", g.did(), "1/a/do", "1/b/undo?", "1/a/undo")
		if out := o.Outputs.All(); string(out["a"]) != "null" {
			t.Errorf("outputs %v", out)
		}
	})
}
