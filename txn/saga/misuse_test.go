package saga

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestDefinitions: faults of a definition are reported when the engine is built, with the
// step and the remedy; valid ones are accepted.
func TestDefinitions(t *testing.T) {
	wantKind(t, txntest.Second(New(nil, nil)), interlock.Bug, nil)
	g := &target{}
	a, p := g.undoable("a"), g.act("p").Pivot()
	none := Step[string, string]("none", nil)
	for name, c := range map[string]struct {
		defs []Defined
		step string
		fix  string // empty if nothing is wrong
	}{
		"right":                {[]Defined{Define("x", a, p, g.act("z")), Define("y", a), Define("z", g.act("q").Uncompensable(), p)}, "", ""},
		"no name":              {[]Defined{Define("", a)}, "", "give it 1 to 200"},
		"no steps":             {[]Defined{Define[string]("x")}, "", "give it one"},
		"two of a name":        {[]Defined{Define("x", a), Define("x", a)}, "", "used twice"},
		"step twice":           {[]Defined{Define("x", g.undoable("b"), a.Undo("other", func(context.Context, string, *string) error { return nil }), a)}, "a", "used twice"},
		"step without a name":  {[]Defined{Define("x", g.undoable(""))}, "", "give it 1 to 255"},
		"step with a long one": {[]Defined{Define("x", g.undoable(strings.Repeat("n", 256)))}, strings.Repeat("n", 256), "give it 1 to 255"},
		"no step":              {[]Defined{Define[string]("x", a, nil)}, "", "give it 1 to 255"},
		"no action":            {[]Defined{Define("x", none.Pivot())}, "none", "give it a function"},
		"no undo":              {[]Defined{Define("x", g.act("b"), p)}, "b", "Uncompensable"},
		"no undo at the end":   {[]Defined{Define("x", a, g.act("b"))}, "b", "make it the Pivot"},
		"undo no function":     {[]Defined{Define("x", g.act("b").Undo("unb", nil), p)}, "b", "give it one"},
		"undo without a name":  {[]Defined{Define("x", a.Undo("", func(context.Context, string, *string) error { return nil }), p)}, "a", "give it 1 to 255"},
		"undo twice":           {[]Defined{Define("x", a, g.undoable("b").Undo("una", func(context.Context, string, *string) error { return nil }))}, "b", "give each its own"},
		"undo of the pivot":    {[]Defined{Define("x", a.Pivot())}, "a", "remove its undo"},
		"undo behind it":       {[]Defined{Define("x", p, a)}, "a", "move it before the pivot"},
		"two pivots":           {[]Defined{Define("x", p, g.act("q").Pivot())}, "q", "at most one"},
		"nil":                  {[]Defined{Define("x", a), nil}, "", "give it one"},
		"undo not UTF-8":       {[]Defined{Define("x", g.act("b").Undo("un\xff", func(context.Context, string, *string) error { return nil }))}, "b", "UTF-8"},
		"undo with NUL":        {[]Defined{Define("x", g.act("b").Undo("un\x00", func(context.Context, string, *string) error { return nil }))}, "b", "UTF-8"},
		"name not UTF-8":       {[]Defined{Define("\xff", a)}, "", "UTF-8"},
		"both":                 {[]Defined{Define("x", a.Uncompensable())}, "a", "remove one of the two"},
		"an empty group":       {[]Defined{Define("x", a, Parallel[string]())}, "", "stage 2 has no steps"},
		"a wait in a group":    {[]Defined{Define("x", a, Parallel(Sleep[string]("w", time.Second)))}, "w", "a wait stands alone"},
		"a wait for no time":   {[]Defined{Define("x", a, Sleep[string]("w", 0))}, "w", "above 0"},
		"an else that is none": {[]Defined{Define("x", a, Signal[string, any]("s").Within(time.Hour).Else(make(chan int)))}, "s", "give Else another value"},
		"an else too long":     {[]Defined{Define("x", a, Signal[string, any]("s").Within(time.Hour).Else(strings.Repeat("x", driver.MaxPayload)))}, "s", "give Else another value"},
		"a pivot in a group":   {[]Defined{Define("x", a, Parallel[string](p))}, "p", "a pivot stands alone"},
		"a long name":          {[]Defined{Define(strings.Repeat("n", 201), a)}, "", "give it 1 to 200"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(nil, &settings{}, c.defs...)
			var d *DefinitionError
			switch {
			case c.fix == "" && err == nil:
			case !errors.As(err, &d):
				t.Errorf("%v", err)
			case d.Step != c.step || !strings.Contains(d.Problem, c.fix) || !strings.Contains(err.Error(), d.Step) || interlock.Kind(d) != interlock.Bug:
				t.Errorf("%v", err)
			}
		})
	}
	_, err := build(nil, &settings{}, Define[string]("x", a, nil))
	if err == nil || err.Error() != `step 2: define saga "x": its name, or that of its undo, has 0 bytes; give it 1 to 255` {
		t.Errorf("the error does not name the fault, and only that: %v", err)
	}
	_, err = build(nil, &settings{}, Define("x", g.act("b"), g.act("c"), p))
	if err == nil || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("not all problems are reported: %v", err)
	}
}

// TestBadInput returns a clear error, and begins nothing.
func TestBadInput(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d, stranger := Define("order", g.undoable("a")), Define("stranger", g.undoable("a"))
		channel := Define("channel", Step("a", func(context.Context, chan int) (int, error) { return 0, nil }).Pivot())
		r := serve(t, nil, 1, nil, d, channel)
		ctx := t.Context()
		wantKind(t, d.Start(ctx, r.engine, "", "in"), interlock.Bug, nil)
		wantKind(t, d.Start(ctx, r.engine, strings.Repeat("x", driver.MaxTransaction+1), "in"), interlock.Bug, nil)
		wantKind(t, stranger.Start(ctx, r.engine, "1", "in"), interlock.Bug, nil)
		wantKind(t, channel.Start(ctx, r.engine, "1", nil), interlock.Bug, nil)
		wantKind(t, d.Start(ctx, r.engine, "1", strings.Repeat("x", driver.MaxPayload)), interlock.Definite, nil)
		_, err := r.engine.Wait(ctx, "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		wantKind(t, r.coordinator.Serve(ctx, r.claim, 0), interlock.Bug, nil)
		wantKind(t, r.coordinator.Serve(ctx, r.claim, 1), interlock.Bug, nil)
		wantKind(t, idle(t, r.store, nil, d).coordinator.Serve(ctx, grant(0), 0), interlock.Definite, interlock.ErrStaleToken)
		if heads, err := r.store.Heads(ctx, "", 10); len(heads) != 0 || err != nil {
			t.Errorf("left %v, %v", heads, err)
		}
		if c := From(ctx); c.Transaction != "" || c.Attempt != 0 {
			t.Errorf("a call without a context: %+v", c)
		}
	})
}

// TestOutputs: a step reads the outputs of earlier ones, by their types, and not those of
// later ones; an output that is too large to store is none.
func TestOutputs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		type seat struct{ Row, Number int }
		g := &target{}
		large := Step("large", func(context.Context, string) (string, error) { return strings.Repeat("x", driver.MaxPayload), nil }).
			Undo("unlarge", func(ctx context.Context, _ string, out *string) error {
				if out != nil {
					t.Error("it has an output")
				}
				return g.take(From(ctx).Key())
			})
		hold := Step("hold", func(context.Context, string) (seat, error) { return seat{3, 4}, nil }).Uncompensable()
		pay := Step("pay", func(ctx context.Context, _ string) (int, error) {
			s, err := hold.Output(ctx)
			if _, early := large.Output(ctx); !errors.Is(early, ErrNoOutput) {
				t.Errorf("an output from the future: %v", early)
			}
			return s.Row * s.Number, err
		}).Uncompensable()
		d := Define("order", hold, pay, large)
		r := serve(t, nil, 1, nil, d)
		o, err := d.Do(t.Context(), r.engine, "1", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, "effects", g.did(), "1/large/undo")
		if n, err := pay.OutputOf(o); n != 12 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		wrong := Step("hold", func(context.Context, string) (int, error) { return 0, nil })
		if _, err := wrong.OutputOf(o); err == nil || errors.Is(err, ErrNoOutput) {
			t.Errorf("a seat as a number: %v", err)
		}
	})
}

// TestDeployed: a saga of another definition is not driven; the error names the step. It
// continues with the right definition. The same holds if its undo or its whole definition
// is missing.
func TestDeployed(t *testing.T) {
	for name, c := range map[string]struct {
		next func(g *target) Defined // the definition that does not fit
		says string
	}{
		"another step":  {func(g *target) Defined { return Define("order", g.undoable("other"), g.undoable("b")) }, `has "other" (undo "unother", pivot false) there`},
		"fewer steps":   {func(g *target) Defined { return Define("order", g.undoable("a")) }, `has nothing there`},
		"a new pivot":   {func(g *target) Defined { return Define("order", g.act("a").Pivot(), g.act("b")) }, "pivot"},
		"no definition": {func(g *target) Defined { return Define("bill", g.undoable("a")) }, `saga:order`},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", g.undoable("a"), g.undoable("b", InProgress(time.Hour)))
			r := serveBegun(t, nil, d, "1", "in")
			synctest.Wait()
			r.quit()
			err := leftAlone(t, r, c.next(g))
			if wantKind(t, err, interlock.Bug, ErrMismatch); !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%v does not say %s", err, c.says)
			}
			same(t, "effects", g.did(), "1/a/do")
			last := serve(t, r.store, 3, nil, d)
			ok(t, txntest.Second(last.engine.Wait(t.Context(), "1")))
		})
	}
}

// TestUndoWithoutItsStep: an undo needs only its function, for any outcome of the steps;
// without the function the saga waits.
func TestUndoWithoutItsStep(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.act("b").Undo("unb", func(context.Context, string, *string) error { return InProgress(time.Hour) }), g.undoable("c", Fail(errSeat)))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		r.quit()
		err := leftAlone(t, r, Define("order", g.undoable("x")))
		if wantKind(t, err, interlock.Bug, ErrMismatch); !strings.Contains(fmt.Sprint(err), `"unb"`) {
			t.Errorf("%v does not name the undo", err)
		}
		unb := g.act("new").Undo("unb", func(ctx context.Context, _ string, out *string) error { return g.take(From(ctx).Key() + *out) })
		last := serve(t, r.store, 3, nil, Define("order", unb, g.undoable("a")))
		_, err = last.engine.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, "effects", g.did(), "1/a/do", "1/b/do", "1/b/undoin>b", "1/a/undo")
	})
}

// TestDamagedJournal: a saga with invalid records is reported, not driven, and the others continue.
func TestDamagedJournal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var failed []error
		hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) }}
		d := Define("order", (&target{}).undoable("a"))
		r := idle(t, txntest.NewJournal(), &settings{Options: coordinator.Options{Hooks: hooks}}, d)
		ok(t, txntest.Second(r.coordinator.Journal().Begin(t.Context(), "1", "saga:order", time.Now(), letters["end"])))
		_, err := r.engine.Look(t.Context(), "1")
		wantKind(t, err, interlock.Bug, nil)
		r.serve(t, 1)
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "2", "in")))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(failed) == 0 || interlock.Kind(failed[0]) != interlock.Bug || !strings.Contains(failed[0].Error(), `drive saga "1": record end "" in state ""`) {
			t.Errorf("reported %v", failed)
		}
		same(t, "records", r.records(t, "1"), "end:")
	})
}

// TestClockSetBack: a clock that jumps loses nothing: a due saga is found when the clock
// reaches its time, or by the next owner, and a driven saga continues.
func TestClockSetBack(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		var back atomic.Int64
		d := Define("order", g.undoable("a"), g.undoable("b", InProgress(time.Second)), g.act("c").Pivot()).Timeout(time.Minute)
		r := idle(t, txntest.NewJournal(), &settings{Options: coordinator.Options{Now: func() time.Time { return time.Now().Add(time.Duration(-back.Load())) }}}, d)
		r.serve(t, 1)
		ok(t, d.Start(t.Context(), r.engine, "1", "in"))
		synctest.Wait()
		back.Store(int64(time.Hour))
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "1")))
		foreign := idle(t, r.store, nil, d)
		ok(t, d.Start(t.Context(), foreign.engine, "2", "in")) // due in an hour, by the owner's clock
		r.quit()
		r.serve(t, 2)
		from := time.Now()
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "2")))
		if took := time.Since(from); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		unscheduled(t, r.store.Journal)
	})
}

// TestLongDefinitionsAreChecked in linear time: a check that compares each step with all
// others takes minutes for these.
func TestLongDefinitionsAreChecked(t *testing.T) {
	var steps []Stage[int]
	for i := range 200_000 {
		steps = append(steps, Step(fmt.Sprint("step", i), func(context.Context, int) (int, error) { return 0, nil }).Uncompensable())
	}
	began := time.Now()
	d := Define("long", steps...)
	if err := d.defined().check(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestChoices: a step has its own choices, and missing ones are reported. The original step
// and the definition do not change.
func TestChoices(t *testing.T) {
	plain := Step("a", func(context.Context, string) (string, error) { return "", nil })
	if s := plain.s.resolved(); s.timeout != 30*time.Second || s.longest != 0 || s.target != "a" || s.policy != (Policy{}).resolve() || len(s.by) != 0 {
		t.Errorf("by default: %+v", s)
	}
	one, two := Policy{Attempts: 1, First: time.Hour}, Policy{Attempts: 2}
	chosen := plain.Timeout(time.Minute).MaxTime(time.Second).Target("bank").Retry(one).RetryOn(branch.ClassRetry, two)
	s := chosen.s.resolved()
	if s.timeout != time.Second || s.longest != time.Second || s.target != "bank" || s.policy != one.resolve() || s.by[branch.ClassRetry] != two.resolve() {
		t.Errorf("as chosen: %+v", s)
	}
	if s := plain.MaxTime(time.Hour).s.resolved(); s.timeout != 30*time.Second {
		t.Errorf("a bound of all beats prolongs one: %v", s.timeout)
	}
	other := chosen.RetryOn(branch.ClassRetry, one).RetryOn(branch.ClassUnknown, one)
	if by := chosen.s.by; len(by) != 1 || by[branch.ClassRetry] != two {
		t.Errorf("changed by a choice for another, or by its use: %+v", by)
	}
	if by := other.s.by; len(by) != 2 || by[branch.ClassRetry] != one || plain.s.by != nil {
		t.Errorf("%+v", by)
	}
}

// TestDefinitionRefuses: Start returns the error of a definition's function. It is Definite unless it has another
// kind, because nothing has begun.
func TestDefinitionRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		busy := &interlock.Error{Op: "read menu", Kind: interlock.Retryable, Err: errSeat}
		list := func(err error) func(string) ([]Stage[string], error) {
			return func(string) ([]Stage[string], error) { return nil, err }
		}
		body := func(err error) func(*Run, string) error { return func(*Run, string) error { return err } }
		all := map[interlock.ErrorKind][]Definition[string]{
			interlock.Definite:  {DefineList("list", list(errSeat)), DefineFunc("func", body(errSeat))},
			interlock.Retryable: {DefineList("busy list", list(busy)), DefineFunc("busy func", body(busy))},
		}
		r := serve(t, nil, 1, nil, all[interlock.Definite][0], all[interlock.Definite][1], all[interlock.Retryable][0], all[interlock.Retryable][1])
		for kind, definitions := range all {
			for _, d := range definitions {
				wantKind(t, d.Start(t.Context(), r.engine, "1", "in"), kind, errSeat)
			}
		}
		_, err := r.engine.Look(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrNone)
	})
}
