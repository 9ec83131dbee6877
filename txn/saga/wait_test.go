package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// approval is the answer of an approver.
type approval struct{ By string }

// TestSignal: a saga waits for a signal by its name, which may have arrived before, and
// continues with the value of the first one. Without one in time it is undone, or continues
// with the default.
func TestSignal(t *testing.T) {
	for name, c := range map[string]struct {
		wait   func(Action[string, approval]) Action[string, approval]
		pivot  bool // before the wait
		early  bool
		never  bool
		end    State
		by     string
		after  time.Duration
		effect string
	}{
		"comes":                 {end: Succeeded, by: "ann", after: 72 * time.Minute, effect: "1/a/do 1/b/do"},
		"has come before":       {early: true, end: Succeeded, by: "ann", effect: "1/a/do 1/b/do"},
		"comes after the pivot": {pivot: true, end: Succeeded, by: "ann", after: 72 * time.Minute, effect: "1/a/do 1/b/do"},
		"comes in time":         {wait: func(a Action[string, approval]) Action[string, approval] { return a.Within(96 * time.Minute) }, end: Succeeded, by: "ann", after: 72 * time.Minute, effect: "1/a/do 1/b/do"},
		"never comes":           {wait: func(a Action[string, approval]) Action[string, approval] { return a.Within(48 * time.Minute) }, never: true, end: Compensated, after: 48 * time.Minute, effect: "1/a/do 1/a/undo"},
		"never, and is not asked": {wait: func(a Action[string, approval]) Action[string, approval] {
			return a.Within(time.Hour).Else(approval{"nobody"})
		}, never: true, end: Succeeded, by: "nobody", after: time.Hour, effect: "1/a/do 1/b/do"},
	} {
		runBubble(t, name, func(t *testing.T) {
			g, wait := &target{}, Signal[string, approval]("approved")
			if c.wait != nil {
				wait = c.wait(wait)
			}
			first := g.undoable("a")
			if c.pivot {
				first = g.act("a").Pivot()
			}
			d := Define("order", first, wait, g.act("b").Uncompensable())
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			ok(t, d.Start(t.Context(), r.engine, "1", "in"))
			if c.early {
				ok(t, r.engine.Signal(t.Context(), "1", "approved", approval{"ann"}))
			}
			if !c.early && !c.never {
				time.Sleep(72 * time.Minute)
				r.quit()
				r = serve(t, r.store, 2, nil, d) // of which nothing is in memory
				ok(t, r.engine.Signal(t.Context(), "1", "approved", approval{"ann"}))
				ok(t, r.engine.Signal(t.Context(), "1", "approved", approval{"ann"}))
				err := r.engine.Signal(t.Context(), "1", "approved", approval{"bob"})
				wantKind(t, err, interlock.Definite, ErrSignalled)
			}
			o, err := r.engine.Wait(t.Context(), "1")
			if o.State != c.end || time.Since(from).Round(time.Minute) != c.after {
				t.Errorf("%v after %v, %v", o.State, time.Since(from), err)
			}
			if c.end == Succeeded {
				got, err := wait.OutputOf(o)
				if ok(t, err); got.By != c.by {
					t.Errorf("by %q", got.By)
				}
			} else if !strings.Contains(o.Reason, `no signal "approved" came in time`) {
				t.Error(o.Reason)
			}
			same(t, "effects", g.did(), strings.Fields(c.effect)...)
			wantKind(t, r.engine.Signal(t.Context(), "1", "late", nil), interlock.Definite, ErrState)
			wantKind(t, r.engine.Signal(t.Context(), "2", "approved", nil), interlock.Definite, ErrNone)
			wantKind(t, SendSignal(t.Context(), r.coordinator.Journal(), "1", "approved", json.RawMessage(`{`)), interlock.Bug, nil)
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestManySignals: the number and the size of a saga's signals are bounded, and a repeated one is
// accepted.
func TestManySignals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := Define("order", Signal[string, int]("go"), (&target{}).act("a").Uncompensable())
		r := serveBegun(t, nil, d, "1", "in")
		ok(t, d.Start(t.Context(), r.engine, "2", "in"))
		large := strings.Repeat("x", 1<<20-2) // and two quotes
		for i := range maxSignalBytes >> 20 {
			ok(t, r.engine.Signal(t.Context(), "2", fmt.Sprint(i), large))
		}
		ok(t, r.engine.Signal(t.Context(), "2", "7", large))
		wantKind(t, r.engine.Signal(t.Context(), "2", "go", 1), interlock.Definite, ErrState)
		synctest.Wait()
		log, _, err := r.coordinator.Journal().Open(t.Context(), "1")
		ok(t, err)
		for i := 0; i < maxSignals; i += driver.MaxRecords {
			var entries []journal.Entry
			for n := i; n < min(i+driver.MaxRecords, maxSignals); n++ {
				entries = append(entries, journal.Entry{Kind: recordSignal, Step: fmt.Sprint(n), Data: []byte("1")})
			}
			ok(t, log.Append(t.Context(), time.Now().Add(time.Hour), entries...))
		}
		ok(t, r.engine.Signal(t.Context(), "1", "7", 1))
		wantKind(t, r.engine.Signal(t.Context(), "1", "go", 1), interlock.Definite, ErrState)
	})
}

// TestSignalInFunction: a function waits for signals as for steps.
func TestSignalInFunction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g, wait := &target{}, Signal[string, approval]("approved")
		a := g.undoable("a")
		d := DefineFunc("order", func(s *Run, in string) error {
			by, err := wait.Await(s)
			if err == nil {
				_, err = a.Do(s, by.By)
			}
			return err
		}, a)
		r := serveBegun(t, nil, d, "1", "in")
		time.Sleep(3 * time.Hour)
		if n := len(r.records(t, "1")); n > 6 {
			t.Errorf("%d records of a wait", n)
		}
		ok(t, r.engine.Signal(t.Context(), "1", "approved", approval{"ann"}))
		o, err := r.engine.Wait(t.Context(), "1")
		ok(t, err)
		if out, err := a.OutputOf(o); err != nil || out != "ann>a" {
			t.Errorf("%q, %v", out, err)
		}
	})
}

// TestStartAt: a saga with a start time calls nothing before it, in any process; an operator
// can start it.
func TestStartAt(t *testing.T) {
	for _, now := range []bool{false, true} {
		onTarget(t, func(t *testing.T, g *target) {
			d := Define("order", g.undoable("a"), g.act("p").Pivot()).Timeout(time.Minute)
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			at := from.Add(50 * time.Minute)
			ok(t, d.StartAt(t.Context(), r.engine, "1", "in", at))
			ok(t, d.StartAt(t.Context(), r.engine, "1", "in", at))
			for n := int64(2); n < 20; n++ {
				time.Sleep(time.Minute)
				r.quit()
				r = serve(t, r.store, n, nil, d)
			}
			if effects, records := g.did(), r.records(t, "1"); len(effects) > 0 || len(records) > 1 {
				t.Errorf("%v, %v", effects, records)
			}
			want := 50 * time.Minute
			if now {
				want = time.Since(from)
				ok(t, NewOperator(r.coordinator.Journal()).Now(t.Context(), "1", By{Actor: "ann", Reason: "it cannot wait"}))
				r.coordinator.Nudge("1")
			}
			_, err := r.engine.Wait(t.Context(), "1")
			if took := time.Since(from); err != nil || took < want || took > want+2*time.Second {
				t.Errorf("%v after %v, not %v", err, took, want)
			}
			same(t, "effects", g.did(), "1/a/do", "1/p/do")
		})
	}
}

// TestVersions: a saga is driven by the version that it began with, beside those of another
// one; a process without a version reports its sagas, and does not drive them.
func TestVersions(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		wait := Sleep[string]("w", time.Hour)
		one := Define("order", g.undoable("a"), wait, g.undoable("b"))
		two := Define("order", g.undoable("x"), wait, g.undoable("y"), g.undoable("z")).Version(2)
		r := serveBegun(t, nil, one, "1", "in")
		synctest.Wait()
		r.quit()
		r = serve(t, r.store, 2, nil, two, one)
		ok(t, r.engine.Start(t.Context(), "order", "2", json.RawMessage(`"in"`)))
		ok(t, two.Start(t.Context(), r.engine, "1", "in")) // it has begun with the first version
		for _, id := range []string{"1", "2"} {
			ok(t, txntest.Second(r.engine.Wait(t.Context(), id)))
		}
		effects := g.did()
		for _, want := range []string{"1/a/do", "1/b/do", "2/x/do", "2/y/do", "2/z/do"} {
			if !slices.Contains(effects, want) {
				t.Errorf("%s is missing: %v", want, effects)
			}
		}
		if len(effects) != 5 {
			t.Error(effects)
		}
		o, err := r.engine.Look(t.Context(), "2")
		if ok(t, err); o.Type != "order@v2" {
			t.Error(o.Type)
		}
		var foreign []observe.CoordinatorForeign
		old := serve(t, r.store, 3, &settings{Options: coordinator.Options{Hooks: &observe.Coordinator{
			Foreign: func(e observe.CoordinatorForeign) { foreign = append(foreign, e) },
			Failed:  func(e observe.CoordinatorFailed) { t.Errorf("reported %+v", e) }}}}, one)
		ok(t, two.Start(t.Context(), r.engine, "3", "in"))
		time.Sleep(2 * time.Second)
		ok(t, one.Start(t.Context(), old.engine, "4", "in"))
		_, err = old.engine.Wait(t.Context(), "4")
		if ok(t, err); len(foreign) == 0 || foreign[0].Type != "saga:order@v2" || old.coordinator.Foreign()["saga:order@v2"] != 1 {
			t.Errorf("reported %+v, counted %v", foreign, old.coordinator.Foreign())
		}
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if _, err = old.engine.Wait(short, "3"); err == nil || !strings.Contains(err.Error(), `without its definition "order@v2"`) {
			t.Error(err)
		}
		old.quit()
		serve(t, r.store, 4, nil, one, two)
		ok(t, txntest.Second(r.engine.Wait(t.Context(), "3")))
	})
	for problem, d := range map[string]Definition[string]{"give it one from 1": Define("order", (&target{}).undoable("a")).Version(-1),
		"give it a Version": Define("order@v3", (&target{}).undoable("a"))} {
		_, err := build(nil, &settings{}, d)
		if wantKind(t, err, interlock.Bug, nil); err == nil || !strings.Contains(err.Error(), problem) {
			t.Error(err)
		}
	}
}

// TestOnEnd: OnEnd is called once the end is durable, again until it succeeds, and by a
// successor if its owner has crashed.
func TestOnEnd(t *testing.T) {
	for name, fails := range map[string]bool{"succeeds": false, "is undone": true} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			gate, calls := make(chan struct{}), 0
			defer close(gate)
			var told []Outcome
			var keys []string
			last, want := g.act("p").Pivot(), Succeeded
			if fails {
				last, want = g.act("p", always(Fail(errSeat))...).Pivot(), Compensated
			}
			d := Define("order", g.undoable("a"), last).OnEnd(func(ctx context.Context, o Outcome) error {
				keys = append(keys, From(ctx).Key())
				switch calls++; calls {
				case 1, 2:
					return errNetwork
				case 3:
					<-gate // its process has crashed
				}
				told = append(told, o)
				return nil
			})
			r := serve(t, nil, 1, nil, d)
			o, err := d.Do(t.Context(), r.engine, "1", "in")
			var ended *EndedError
			if o.State != want || err != nil && !errors.As(err, &ended) {
				t.Errorf("%+v, %v", o, err)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if calls != 3 || len(told) != 0 {
				t.Fatalf("%d calls", calls)
			}
			r = serve(t, r.store, 2, nil, d)
			time.Sleep(time.Second)
			synctest.Wait()
			if calls != 4 || len(told) != 1 || told[0].State != want || told[0].ID != "1" || keys[0] != keys[3] {
				t.Errorf("%d calls, reported %+v, %v", calls, told, keys)
			}
			head, _, err := r.store.Read(t.Context(), "1", 0)
			if ok(t, err); head.Ended.IsZero() {
				t.Errorf("%+v: %v", head, r.records(t, "1"))
			}
			unscheduled(t, r.store.Journal)
		})
	}
}

// TestTargetOfOnEnd: sagas whose OnEnd hangs at one system do not delay those of another one.
func TestTargetOfOnEnd(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		reported := make(chan time.Time, 1)
		d := Define("order", g.undoable("a")).OnEnd(func(ctx context.Context, o Outcome) error {
			if string(o.Input) == `"hangs"` {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			reported <- time.Now()
			return nil
		}).EndTarget(func(input string) string { return input })
		r := serve(t, nil, 1, &settings{Options: coordinator.Options{PerTarget: 4}}, d)
		for i := range 100 {
			ok(t, d.Start(t.Context(), r.engine, fmt.Sprint("hangs ", i), "hangs"))
		}
		time.Sleep(10 * time.Second)
		from := time.Now()
		ok(t, d.Start(t.Context(), r.engine, "well", "answers"))
		if took := (<-reported).Sub(from); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestTargetOfOnEndPanics: OnEnd is called, and the saga ends, although the function of its target panics.
func TestTargetOfOnEndPanics(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a")).OnEnd(func(context.Context, Outcome) error { return g.take("ended") }).
			EndTarget(func(string) string { panic("ouch") })
		r := serve(t, nil, 1, nil, d)
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		synctest.Wait()
		same(t, "effects", g.did(), "1/a/do", "ended")
	})
}

// TestBusyOnEnd: OnEnd is not called before the time for which its target asks, also if the target answers
// another saga meanwhile.
func TestBusyOnEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls txntest.Events[time.Duration]
		d := Define("order", (&target{}).undoable("a")).OnEnd(func(_ context.Context, o Outcome) error {
			if o.ID == "well" {
				return nil
			}
			calls.Add(time.Since(began))
			return []error{errNetwork, errNetwork, errNetwork, errNetwork, txntest.Busy(30 * time.Second), nil}[len(calls.All())-1]
		})
		r := serveBegun(t, nil, d, "busy", "in")
		time.Sleep(10 * time.Second)
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "well", "in")))
		time.Sleep(time.Minute)
		if at := calls.All(); len(at) != 6 || at[5]-at[4] != 30*time.Second {
			t.Errorf("called at %v", at)
		}
	})
}

// TestFailingOnEnd: sagas whose OnEnd fails for hours do not fill the memory of their process, and
// others are driven. All of them end once OnEnd succeeds.
func TestFailingOnEnd(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		var down atomic.Bool
		down.Store(true)
		d := Define("order", g.undoable("a")).OnEnd(func(context.Context, Outcome) error {
			if down.Load() {
				return errNetwork
			}
			return nil
		})
		plain := Define("plain", g.undoable("a"))
		r := serve(t, nil, 1, &settings{Options: coordinator.Options{Held: 10}}, d, plain)
		const many = 50
		for i := range many {
			ok(t, d.Start(t.Context(), r.engine, fmt.Sprint("failing ", i), "in"))
		}
		time.Sleep(10 * time.Minute)
		ok(t, plain.StartAt(t.Context(), r.engine, "well", "in", time.Now().Add(time.Minute)))
		ctx, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		if o, err := r.engine.Wait(ctx, "well"); o.State != Succeeded {
			t.Fatalf("%s: %v", o.State, err)
		}
		down.Store(false)
		time.Sleep(time.Hour)
		for i := range many {
			head, _, err := r.store.Read(t.Context(), fmt.Sprint("failing ", i), 0)
			if ok(t, err); head.Ended.IsZero() {
				t.Fatalf("%+v", head)
			}
		}
	})
}

// TestWaitSaysWhy: Wait returns at once if the saga's definition does not fit.
func TestWaitSaysWhy(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), Sleep[string]("w", time.Hour), g.undoable("b"))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		r.quit()
		changed := serve(t, r.store, 2, nil, Define("order", g.undoable("other"), Sleep[string]("w", time.Hour), g.undoable("b")))
		ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
		defer end()
		from := time.Now()
		_, err := changed.engine.Wait(ctx, "1")
		if wantKind(t, err, interlock.Bug, ErrMismatch); time.Since(from) > 2*time.Second || err == nil || !strings.Contains(err.Error(), `step "a"`) {
			t.Errorf("%v after %v", err, time.Since(from))
		}

		changed.quit()
		serve(t, r.store, 3, nil, d)
		o, err := changed.engine.Wait(t.Context(), "1")
		if ok(t, err); o.State != Succeeded {
			t.Errorf("driven by another process: %s", o.State)
		}
	})
}

// TestHandOversBeforeOnEnd: owners that end cleanly while OnEnd fails or hangs do not count as crashed, so OnEnd
// is called until it succeeds.
func TestHandOversBeforeOnEnd(t *testing.T) {
	for name, down := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errNetwork },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			var up atomic.Bool
			var reported atomic.Int64
			d := Define("order", g.undoable("a")).OnEnd(func(ctx context.Context, _ Outcome) error {
				if !up.Load() {
					return down(ctx)
				}
				reported.Add(1)
				return nil
			})
			r := serveBegun(t, nil, d, "1", "in")
			for n := int64(2); n < 17; n++ {
				synctest.Wait()
				r.quit()
				r = serve(t, r.store, n, nil, d)
			}
			up.Store(true)
			time.Sleep(time.Minute)
			synctest.Wait()
			head, _, err := r.store.Read(t.Context(), "1", 0)
			if ok(t, err); reported.Load() != 1 || head.Ended.IsZero() {
				t.Errorf("reported %d times, %+v: %v", reported.Load(), head, r.records(t, "1"))
			}
		})
	}
}

// TestStartsItsVersion: a definition starts its own version, also if it has none; a start attaches to any version;
// and a name may contain the mark of versions.
func TestStartsItsVersion(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		const name = "pay@vendor"
		all := []Definition[string]{Define(name, g.undoable("a")), Define(name, g.undoable("b")).Version(1), Define(name, g.undoable("c")).Version(2)}
		r := serve(t, nil, 1, nil, all[0], all[1], all[2], Define("charge", g.undoable("d")).Version(1))
		for i, d := range all {
			o, err := d.Do(t.Context(), r.engine, fmt.Sprint(i), "in")
			if ok(t, err); o.Type != d.plan.key() {
				t.Errorf("%q began %q", d.plan.key(), o.Type)
			}
			for _, other := range all {
				ok(t, other.Start(t.Context(), r.engine, fmt.Sprint(i), "in"))
			}
		}
		if err := Define("charge", g.undoable("d")).Start(t.Context(), r.engine, "3", "in"); interlock.Kind(err) != interlock.Bug {
			t.Errorf("the engine has another version only: %v", err)
		}
		for kind, want := range map[string]int{name: 3, name + "@v1": 1, "pay": 0} {
			n := 0
			for _, err := range r.engine.Operator().List(t.Context(), Filter{Type: kind}) {
				ok(t, err)
				n++
			}
			if n != want {
				t.Errorf("%d sagas of type %q", n, kind)
			}
		}
	})
}
