package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// shop is a target that loses effects, and restores some after their undo.
type shop struct {
	mu    sync.Mutex
	sold  map[string]bool
	calls []string
	fails error // of checks
}

func (s *shop) step(name string, repair bool, fails ...error) Action[string, string] {
	calls := 0
	a := Step(name, func(ctx context.Context, _ string) (string, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if calls++; calls <= len(fails) && fails[calls-1] != nil {
			return "", fails[calls-1]
		}
		s.sold[From(ctx).Transaction+name] = true
		s.calls = append(s.calls, From(ctx).Key())
		return name, nil
	}).Undo("un"+name, func(ctx context.Context, _ string, _ *string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sold, From(ctx).Transaction+name)
		s.calls = append(s.calls, From(ctx).Key())
		return nil
	}).Check(func(ctx context.Context, _ string, out *string) (Effect, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.fails != nil:
			return EffectUnknown, s.fails
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

// lose removes all effects.
func (s *shop) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sold = map[string]bool{}
}

// TestReconcile: missing effects, and those that exist after their undo, are reported. Those
// declared repairable are repaired by one call under their key.
func TestReconcile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		good := Define("good", s.step("a", true), s.step("b", false))
		bad := Define("bad", s.step("c", true), s.step("d", false), s.step("no", false, Fail(errSeat)))
		function := DefineFunc("function", func(run *Run, in string) error { _, err := s.step("f", true).At(1).Do(run, in); return err }, s.step("f", true))
		r := serve(t, nil, 1, nil, good, bad, function)
		ctx, from := t.Context(), time.Now()
		ok(t, txntest.Second(good.Do(ctx, r.engine, "1", "in")))
		_, err := bad.Do(ctx, r.engine, "2", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		ok(t, txntest.Second(function.Do(ctx, r.engine, "3", "in")))
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

// TestReconcileWithoutItsList: a list that fails now ends neither the process nor other
// checks: those of the definition's own steps run.
func TestReconcileWithoutItsList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		broken := false
		a := s.step("a", false)
		d := DefineList("order", func(string) ([]Stage[string], error) {
			if broken {
				panic("oops")
			}
			return []Stage[string]{a}, nil
		}, a)
		r := serve(t, nil, 1, nil, d)
		from := time.Now()
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		broken, s.sold = true, map[string]bool{}
		n := 0
		for f, err := range r.engine.Reconcile(t.Context(), from) {
			if ok(t, err); f.Step != "a" || f.Got != Absent {
				t.Errorf("%+v", f)
			}
			n++
		}
		txntest.Equal(t, "findings", n, 1)
	})
}

// headless is a store that cannot list its transactions.
type headless struct{ *memory.Journal }

func (headless) Heads(context.Context, string, int) ([]driver.Head, error) { return nil, errNetwork }

// engineOver returns an engine over any store, which serves nothing.
func engineOver(t *testing.T, store driver.Journal, defs ...Defined) *Engine {
	t.Helper()
	e, err := build(open(t, store, journal.Options{Shards: 1}), &settings{}, defs...)
	ok(t, err)
	return e
}

// TestReconcileTellsWhatItCannotRead: it reports the saga's id if it is one saga, and
// continues. It does not report forgotten sagas, and ends when the caller stops.
func TestReconcileTellsWhatItCannotRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		good := Define("good", s.step("a", false), s.step("b", false))
		gone := Define("gone", s.step("a", false))
		r := serve(t, nil, 1, nil, good, gone)
		ctx, from, j := t.Context(), time.Now(), r.coordinator.Journal()
		log, err := j.Begin(ctx, "1", "saga:good", time.Now().Add(time.Hour), letters["begin"])
		ok(t, err)
		ok(t, log.End(ctx, letters["end"]))
		ok(t, txntest.Second(gone.Do(ctx, r.engine, "2", "in")))
		for _, id := range []string{"3", "4"} {
			ok(t, txntest.Second(good.Do(ctx, r.engine, id, "in")))
		}
		_, err = j.Begin(ctx, "5", "saga:good", time.Now().Add(time.Hour), letters["begin"]) // it has not ended
		ok(t, err)
		s.lose()
		listen := func(e *Engine, enough int) (heard []string) {
			for f, err := range e.Reconcile(ctx, from) {
				says := ""
				if err != nil {
					says = " " + err.Error()
				}
				if heard = append(heard, f.ID+f.Step+says); len(heard) == enough {
					break
				}
			}
			return heard
		}
		damaged := `1 reconcile transactions "1": record end "" in state "RUNNING": it is invalid in this state`
		unknown := `2 transaction "2": the engine has no definition "gone": add it`
		e := idle(t, r.store, nil, good).engine
		for _, want := range [][]string{{damaged}, {damaged, unknown}, {damaged, unknown, "3a"}} {
			same(t, "heard", listen(e, len(want)), want...)
		}
		all := []string{damaged, unknown, "3a", "3b", "4a", "4b"}
		same(t, "heard", listen(e, -1), all...)
		same(t, "of a store that fails", listen(engineOver(t, headless{r.store.Journal}, good), -1), " network")
		heard := listen(engineOver(t, forgetful{r.store.Journal}, good), -1)
		left := slices.DeleteFunc(all, func(call string) bool {
			return !slices.ContainsFunc(heard, func(s string) bool { return s[0] == call[0] }) // of the saga that was forgotten
		})
		if same(t, "of one that forgets", heard, left...); len(left) == 6 {
			t.Error("none was forgotten")
		}
	})
}

// TestReconcileCall: a check and a repair have the key of their call, and the step's timeout;
// a repair that fails, or changes nothing, is reported.
func TestReconcileCall(t *testing.T) {
	for name, c := range map[string]struct {
		refused bool  // the saga
		fix     error // of the repair
		heals   bool
		calls   []string
		finding string
	}{
		"fixed":                 {calls: []string{"1/a/0/do", "1/a/0/do fix", "1/a/0/do"}, heals: true, finding: "present, present, repaired true: <nil>"},
		"fixed without effect":  {calls: []string{"1/a/0/do", "1/a/0/do fix", "1/a/0/do"}, finding: "present, absent, repaired false: <nil>"},
		"the repair fails":      {calls: []string{"1/a/0/do", "1/a/0/do fix"}, fix: errNetwork, heals: true, finding: "present, absent, repaired false: network"},
		"undone":                {refused: true, calls: []string{"1/a/0/undo", "1/a/0/undo fix", "1/a/0/undo"}, heals: true, finding: "absent, absent, repaired true: <nil>"},
		"undone without effect": {refused: true, calls: []string{"1/a/0/undo", "1/a/0/undo fix", "1/a/0/undo"}, finding: "absent, present, repaired false: <nil>"},
		"the second undo fails": {refused: true, calls: []string{"1/a/0/undo", "1/a/0/undo fix"}, fix: errNetwork, heals: true, finding: "absent, present, repaired false: network"},
	} {
		runBubble(t, name, func(t *testing.T) {
			done, reconciling := false, false
			var calls []string
			take := func(ctx context.Context, what string) {
				c := From(ctx)
				deadline, _ := ctx.Deadline()
				if calls = append(calls, c.Key()+what); c.Attempt != 1 || c.Begun.IsZero() || c.Type != "order" || time.Until(c.Deadline) != 3*time.Second || !deadline.Equal(c.Deadline) || len(c.Outputs.All()) != 1 {
					t.Errorf("%+v", c)
				}
			}
			act := func(ctx context.Context, value bool) error {
				if !reconciling {
					done = value
					return nil
				}
				take(ctx, " fix")
				if c.fix == nil && c.heals {
					done = value
				}
				return c.fix
			}
			known := Step("a", func(ctx context.Context, _ string) (int, error) { return 1, act(ctx, true) }).
				Undo("una", func(ctx context.Context, _ string, out *int) error {
					if out == nil || *out != 1 {
						t.Error("the output is lost")
					}
					return act(ctx, false)
				})
			a := known.Check(func(ctx context.Context, input string, out *int) (Effect, error) {
				if take(ctx, ""); input != "in" || out == nil || *out != 1 {
					t.Errorf("asked about %q, %v", input, out)
				}
				if done {
					return Present, nil
				}
				return Absent, nil
			}).Repair().Timeout(3 * time.Second)
			no := Step("no", func(context.Context, string) (int, error) { return 0, Fail(errSeat) }).Pivot()
			d := DefineList("order", func(string) ([]Stage[string], error) {
				all := []Stage[string]{a.At(0)}
				if c.refused {
					all = append(all, no)
				}
				return all, nil
			}, known)
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			_, _ = d.Do(t.Context(), r.engine, "1", "in")
			done, reconciling = !done, true
			var findings []string
			for f, err := range r.engine.Reconcile(t.Context(), from) {
				ok(t, err)
				findings = append(findings, fmt.Sprintf("%v, %v, repaired %v: %v", f.Want, f.Got, f.Repaired, f.Err))
			}
			same(t, "calls", calls, c.calls...)
			same(t, "findings", findings, c.finding)
		})
	}
}

// TestReconcileCheckPanics: the state of this step is unknown, and the next is checked.
func TestReconcileCheckPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := Step("a", func(context.Context, string) (int, error) { return 1, nil }).Uncompensable()
		oops := a.Check(func(context.Context, string, *int) (Effect, error) { panic("oops") })
		unsure := a.Named("b").Check(func(context.Context, string, *int) (Effect, error) { return EffectUnknown, nil }).Repair()
		d := Define("order", oops, unsure, a.Named("c"))
		r := serve(t, nil, 1, nil, d)
		from := time.Now()
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		var findings []string
		for f, err := range r.engine.Reconcile(t.Context(), from) {
			ok(t, err)
			panicked, _, _ := strings.Cut(fmt.Sprint(f.Err), "\n") // without the stack
			findings = append(findings, fmt.Sprintf("%s %v, repaired %v: %s", f.Step, f.Got, f.Repaired, panicked))
		}
		same(t, "findings", findings, "a unsure, repaired false: panic: oops", "b unsure, repaired false: <nil>")
	})
}

// TestReconcilesInTheBackground: a coordinator checks ended sagas by itself, and on a
// command; both report to the hooks.
func TestReconcilesInTheBackground(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		good := Define("good", s.step("a", true), s.step("b", false))
		var mismatched txntest.Events[string]
		var reconciled txntest.Events[observe.Reconciled]
		o := &settings{saga: Options{Hooks: &observe.Saga{
			Mismatched: func(e observe.SagaMismatched) { mismatched.Add(e.Saga + " " + e.Step + " " + e.Got) },
			Reconciled: reconciled.Add,
		}}}
		r := serve(t, nil, 1, o, good)
		ok(t, txntest.Second(good.Do(t.Context(), r.engine, "1", "in")))
		s.lose()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		wrong, gauge := mismatched.All(), reconciled.All()
		if got := strings.Join(wrong[:min(2, len(wrong))], ", "); got != "1 a present, 1 b absent" || len(gauge) == 0 || gauge[0].Wrong != 1 || gauge[0].Repaired != 1 || gauge[0].Err != nil {
			t.Errorf("%v, %+v", wrong, gauge)
		}

		j := r.coordinator.Journal()
		id, err := coordinator.RequestReconciliation(t.Context(), j, "saga", time.Now().Add(-24*time.Hour), time.Now())
		ok(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		found, err := coordinator.ReconciliationOf(context.Background(), j, id)
		if ok(t, err); found == nil || found.Wrong != 1 || len(found.Findings) != 1 || found.Findings[0].Step != "b" {
			t.Errorf("%+v", found)
		}
	})
}

// TestReconcileThatIsInterrupted: a request whose service ends meanwhile reports nothing, and is
// executed by the next one.
func TestReconcileThatIsInterrupted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		checking, from := make(chan struct{}, 10), time.Now()
		a := Step("a", func(context.Context, string) (int, error) { return 1, nil }).Uncompensable()
		d := Define("order", a.Check(func(ctx context.Context, _ string, _ *int) (Effect, error) {
			checking <- struct{}{}
			<-ctx.Done()
			return EffectUnknown, context.Cause(ctx)
		}))
		var mismatched txntest.Events[string]
		first := serve(t, nil, 1, &settings{saga: Options{Hooks: &observe.Saga{Mismatched: func(e observe.SagaMismatched) { mismatched.Add(e.Saga) }}}}, d)
		for _, id := range []string{"1", "2"} {
			ok(t, txntest.Second(d.Do(t.Context(), first.engine, id, "in")))
		}
		j := first.coordinator.Journal()
		id, err := coordinator.RequestReconciliation(t.Context(), j, "saga", from, time.Now())
		ok(t, err)
		<-checking
		first.quit()
		if found, err := coordinator.ReconciliationOf(context.Background(), j, id); err != nil || found != nil {
			t.Errorf("after the service ended: %+v, %v", found, err)
		}
		same(t, "mismatched", mismatched.All())
	})
}
