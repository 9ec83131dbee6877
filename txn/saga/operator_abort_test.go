package saga

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
)

// TestOperatorAborts: a saga that has not called its pivot is undone, with what is under
// way, and says who wanted that; what waits is not called any more.
func TestOperatorAborts(t *testing.T) {
	for name, c := range map[string]struct {
		stages func(g *target) []Stage[string]
		want   []string
	}{
		"nothing has happened": {func(g *target) []Stage[string] {
			return []Stage[string]{Sleep[string]("w", 72*time.Hour), g.undoable("a")}
		}, nil},
		"a step is done": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), Sleep[string]("w", 72*time.Hour), g.undoable("b")}
		}, []string{"1/a/do", "1/a/undo"}},
		"a step is under way": {func(g *target) []Stage[string] {
			return []Stage[string]{g.undoable("a"), g.undoable("b", InProgress(72*time.Hour))}
		}, []string{"1/a/do", "1/b/undo?", "1/a/undo"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				g := &target{}
				d := Define("order", c.stages(g)...)
				r := serve(t, nil, 1, nil, d)
				ok(t, d.Start(t.Context(), r.engine, "1", "in"))
				time.Sleep(10 * time.Second)
				o := NewOperator(r.coordinator.Journal())
				ok(t, o.Abort(t.Context(), "1", ann))
				if name == "nothing has happened" {
					if looked, err := r.engine.Look(t.Context(), "1"); err != nil || looked.State != Compensated {
						t.Errorf("it has not ended by that: %+v, %v", looked, err)
					}
				}
				time.Sleep(10 * time.Second)
				same(t, "effects", g.did(), c.want...)
				looked, err := r.engine.Look(t.Context(), "1")
				if ok(t, err); looked.State != Compensated || looked.Reason != "ann: "+ann.Reason {
					t.Errorf("%+v", looked)
				}
				wantKind(t, o.Abort(t.Context(), "1", ann), interlock.Definite, ErrState)
				unscheduled(t, r.store.Journal)
			})
		})
	}
}

// TestOperatorAbortsTooLate: what the pivot may have made final is not undone.
func TestOperatorAbortsTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &target{}
		d := Define("order", g.undoable("a"), g.act("p", InProgress(time.Minute)).Pivot(), g.act("z", InProgress(time.Minute)))
		r := serve(t, nil, 1, nil, d)
		ok(t, d.Start(t.Context(), r.engine, "1", "in"))
		synctest.Wait()
		o := NewOperator(r.coordinator.Journal())
		err := o.Abort(t.Context(), "1", ann)
		if wantKind(t, err, interlock.Definite, ErrState); !strings.Contains(err.Error(), `pivot "p" may have happened`) {
			t.Error(err)
		}
		time.Sleep(90 * time.Second) // the pivot is done
		wantKind(t, o.Abort(t.Context(), "1", ann), interlock.Definite, ErrState)
		_, err = r.engine.Wait(t.Context(), "1")
		ok(t, err)
		same(t, "effects", g.did(), "1/a/do", "1/p/do", "1/z/do")
	})
}

// TestNobodyKnowsItsType: a saga whose definition is gone can be ended by hand all the
// same: it is aborted, and its undos are skipped.
func TestNobodyKnowsItsType(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &target{}
		gone := Define("gone", g.undoable("a"), Sleep[string]("w", 72*time.Hour), g.undoable("b"))
		r := serve(t, nil, 1, nil, gone)
		ok(t, gone.Start(t.Context(), r.engine, "1", "in"))
		time.Sleep(10 * time.Second)
		r.claim.End(interlock.ErrReleased)
		synctest.Wait()
		next := serve(t, r.store, 2, nil, Define("order", g.undoable("a")))
		o := NewOperator(next.coordinator.Journal())
		ok(t, o.Abort(t.Context(), "1", ann))
		ok(t, o.Skip(t.Context(), "1", "a", ann))
		looked, err := next.engine.Look(t.Context(), "1")
		if ok(t, err); !looked.State.Final() {
			t.Errorf("%+v", looked)
		}
		same(t, "effects", g.did(), "1/a/do")
	})
}
