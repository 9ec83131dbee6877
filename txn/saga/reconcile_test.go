package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// shop is a target that loses effects, and gets some back behind their undo.
type shop struct {
	sold  map[string]bool
	calls []string
	fails error // of checks
}

func (s *shop) step(name string, repair bool, fails ...error) Action[string, string] {
	calls := 0
	a := Step(name, func(ctx context.Context, _ string) (string, error) {
		if calls++; calls <= len(fails) && fails[calls-1] != nil {
			return "", fails[calls-1]
		}
		s.sold[From(ctx).Transaction+name] = true
		s.calls = append(s.calls, From(ctx).Key())
		return name, nil
	}).Undo("un"+name, func(ctx context.Context, _ string, _ *string) error {
		delete(s.sold, From(ctx).Transaction+name)
		s.calls = append(s.calls, From(ctx).Key())
		return nil
	}).Check(func(ctx context.Context, _ string, out *string) (Truth, error) {
		switch {
		case s.fails != nil:
			return Unsure, s.fails
		case s.sold[From(ctx).Transaction+name]:
			return Present, nil
		}
		return Absent, nil
	})
	if repair {
		a = a.Repair()
	}
	return a
}

// TestReconcile: effects that are missing, and those that are there behind their undo,
// are told; what is declared repairable is mended by a call under its key, once.
func TestReconcile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		good := Define("good", s.step("a", true), s.step("b", false))
		bad := Define("bad", s.step("c", true), s.step("d", false), s.step("no", false, Fail(errSeat)))
		function := DefineFunc("function", func(run *S, in string) error { _, err := s.step("f", true).At(1).Do(run, in); return err }, s.step("f", true))
		r := serve(t, nil, 1, nil, good, bad, function)
		ctx, from := t.Context(), time.Now()
		_, err := good.Do(ctx, r.engine, "1", "in")
		ok(t, err)
		_, err = bad.Do(ctx, r.engine, "2", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		_, err = function.Do(ctx, r.engine, "3", "in")
		ok(t, err)
		found := func(since time.Time) (all []string) {
			for f, err := range r.engine.Reconcile(ctx, since) {
				if ok(t, err); f.Repaired != (f.Got == f.Want) {
					t.Errorf("%+v", f)
				}
				all = append(all, fmt.Sprintf("%s %s %s: %v, %v %v", f.ID, f.State, f.Step, f.Want, f.Got, f.Err))
			}
			return all
		}
		same(t, "findings", found(from))
		s.sold, s.calls = map[string]bool{"2c": true, "2d": true, "2no": true}, nil
		same(t, "findings of later sagas", found(time.Now().Add(time.Hour)))
		same(t, "findings", found(from), "1 SUCCEEDED a: present, present <nil>", "1 SUCCEEDED b: present, absent <nil>",
			"2 COMPENSATED c: absent, absent <nil>", "2 COMPENSATED d: absent, present <nil>", "2 COMPENSATED no: absent, present <nil>",
			"3 SUCCEEDED f#1: present, present <nil>")
		same(t, "calls", s.calls, "1/a/do", "2/c/undo", "3/f/1/do")
		if again := found(from); len(again) != 3 {
			t.Errorf("%v", again)
		}
		s.fails = errors.New("down")
		if down := found(from); len(down) != 6 || !slices.Contains(down, "1 SUCCEEDED a: present, unsure down") {
			t.Errorf("%v", down)
		}
		for f, err := range idle(t, r.store, nil, good).engine.Reconcile(ctx, from) {
			if f.ID != "1" {
				wantKind(t, err, interlock.Bug, ErrMismatch)
			}
		}
	})
}

// TestReconcileWithoutItsList: a list that fails by now ends neither the process nor
// the others: what the definition knows of the saga's steps is asked.
func TestReconcileWithoutItsList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		broken := false
		a := s.step("a", false)
		d := DefineList("order", func(string) ([]StepOf[string], error) {
			if broken {
				panic("oops")
			}
			return []StepOf[string]{a}, nil
		}, a)
		r := serve(t, nil, 1, nil, d)
		from := time.Now()
		_, err := d.Do(t.Context(), r.engine, "1", "in")
		ok(t, err)
		broken, s.sold = true, map[string]bool{}
		n := 0
		for f, err := range r.engine.Reconcile(t.Context(), from) {
			if ok(t, err); f.Step != "a" || f.Got != Absent {
				t.Errorf("%+v", f)
			}
			n++
		}
		if n != 1 {
			t.Errorf("%d findings", n)
		}
	})
}
