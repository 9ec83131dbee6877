package saga

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// TestPivotSettled: a pivot that does not answer is what somebody has found out: then the
// saga goes on, with its output, or is undone. Who did it, and why, can be read.
func TestPivotSettled(t *testing.T) {
	for name, c := range map[string]struct {
		settle func(t *testing.T, o *Operator) error
		end    State
		want   []string
	}{
		"done": {func(t *testing.T, o *Operator) error {
			return o.Done(t.Context(), "1", "p", json.RawMessage(`"receipt"`), ann)
		}, Succeeded, []string{"1/a/do", "1/z/do"}},
		"not done": {func(t *testing.T, o *Operator) error { return o.NotDone(t.Context(), "1", "p", ann) }, Compensated, []string{"1/a/do", "1/a/undo"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				g := &target{}
				d := Define("order", g.undoable("a"), g.act("p", always(errNetwork)...).Retry(Policy{First: time.Hour, Max: time.Hour}).Pivot(), g.act("z"))
				r := serve(t, nil, 1, nil, d)
				ok(t, d.Start(t.Context(), r.engine, "1", "in"))
				synctest.Wait()
				ok(t, c.settle(t, NewOperator(r.coordinator.Journal())))
				time.Sleep(5 * time.Second)
				same(t, "effects", g.did(), c.want...)
				looked, err := r.engine.Look(t.Context(), "1")
				if ok(t, err); looked.State != c.end {
					t.Errorf("%+v", looked)
				}
				if c.end == Compensated && looked.Reason == "" || c.end == Succeeded && string(looked.Outputs.All()["p"]) != `"receipt"` {
					t.Errorf("%+v", looked)
				}
				_, entries, err := r.coordinator.Journal().Open(t.Context(), "1")
				ok(t, err)
				moments, err := Replay(entries)
				ok(t, err)
				var who By
				for _, m := range moments {
					if m.Kind == recordSettle {
						who = m.By
					}
				}
				if who != ann {
					t.Errorf("by %+v", who)
				}
				unscheduled(t, r.store.Journal)
			})
		})
	}
}

// TestSettledMisuse: what was answered, waits, comes later, or cannot fail any more is not
// settled, and nothing is written.
func TestSettledMisuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &target{}
		d := Define("order", g.undoable("a"), g.undoable("b", InProgress(time.Hour)), g.undoable("c"), Sleep[string]("w", time.Hour),
			g.act("p").Pivot(), g.act("z", InProgress(time.Hour)))
		r := serve(t, nil, 1, nil, d)
		o, ctx := NewOperator(r.coordinator.Journal()), t.Context()
		ok(t, d.Start(ctx, r.engine, "1", "in"))
		synctest.Wait()
		before := len(r.records(t, "1"))
		for _, step := range []string{"a", "c", "w", "p", "nobody", ""} {
			wantKind(t, o.Done(ctx, "1", step, nil, ann), interlock.Definite, ErrState)
			wantKind(t, o.NotDone(ctx, "1", step, ann), interlock.Definite, ErrState)
		}
		wantKind(t, o.Done(ctx, "1", "b", json.RawMessage("{"), ann), interlock.Bug, nil)
		wantKind(t, o.Done(ctx, "1", "b", json.RawMessage(`"`+strings.Repeat("a", driver.MaxPayload)+`"`), ann), interlock.Bug, nil)
		wantKind(t, o.Done(ctx, "1", "b", nil, By{Actor: "ann"}), interlock.Bug, nil)
		if n := len(r.records(t, "1")); n != before {
			t.Errorf("%v", r.records(t, "1"))
		}
		ok(t, o.Done(ctx, "1", "b", nil, ann))
		time.Sleep(time.Minute)
		wantKind(t, o.Done(ctx, "1", "w", nil, ann), interlock.Definite, ErrState) // Now ends it
		time.Sleep(90 * time.Minute)
		err := o.NotDone(ctx, "1", "z", ann)
		if wantKind(t, err, interlock.Definite, ErrState); !strings.Contains(err.Error(), "given up") {
			t.Error(err)
		}
		ok(t, o.Done(ctx, "1", "z", nil, ann))
		looked, err := r.engine.Wait(ctx, "1")
		if ok(t, err); looked.State != Succeeded {
			t.Errorf("%+v", looked)
		}
		same(t, "effects", g.did(), "1/a/do", "1/c/do", "1/p/do")
	})
}
