package saga

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// ledger has steps with their own inputs, and records those.
type ledger struct {
	mu    sync.Mutex // groups write concurrently
	lines []string
}

func (l *ledger) line(ctx context.Context, text string, args ...any) {
	c := From(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(c.Branch+"/"+c.Step, "/")+" "+string(c.Operation)+fmt.Sprintf(text, args...))
}

func (l *ledger) reserve() Action[int, string] {
	return Step("reserve", func(ctx context.Context, seat int) (string, error) {
		l.line(ctx, " %d", seat)
		return fmt.Sprint("ticket ", seat), nil
	}).Undo("release", func(ctx context.Context, seat int, ticket *string) error {
		l.line(ctx, " %d %v", seat, *ticket)
		return nil
	})
}

func (l *ledger) charge(fails ...error) Action[float64, int] {
	calls := 0
	return Step("charge", func(ctx context.Context, amount float64) (int, error) {
		l.line(ctx, " %v", amount)
		if calls++; calls <= len(fails) {
			return 0, fails[calls-1]
		}
		return int(amount), nil
	}).Pivot()
}

// tour reserves a number of seats by its input, concurrently, then charges for them and
// reports that.
func (l *ledger) tour(reserve Action[int, string], charge Action[float64, int]) Definition[int] {
	mail := Step("mail", func(ctx context.Context, text string) (bool, error) { l.line(ctx, " %s", text); return true, nil })
	return DefineFunc("tour", func(s *Run, seats int) error {
		var tickets []*Future[string]
		for i := range seats {
			tickets = append(tickets, reserve.At(i).Go(s, 10+i))
		}
		if err := s.Join(); err != nil {
			return err
		}
		text := ""
		for _, t := range tickets {
			ticket, err := t.Output()
			if err != nil {
				return err
			}
			text += ticket + ", "
		}
		if seats > 2 {
			return errSeat
		}
		paid, err := charge.Do(s, 12.5)
		if err != nil {
			return err
		}
		_, err = mail.Do(s, fmt.Sprint(text, paid, " paid"))
		return err
	}, reserve, charge, mail)
}

// TestFunc: steps have their own inputs, computed from the outputs of others; n stages are
// 1 + n appends; and undos get the inputs of the steps, without the function.
func TestFunc(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &ledger{}
		d := l.tour(l.reserve(), l.charge(Fail(errSeat)))
		r := serve(t, nil, 1, nil, d)
		_, err := d.Do(t.Context(), r.engine, "1", 1)
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, "calls", l.lines, "reserve/0 do 10", "charge do 12.5", "reserve/0 undo 10 ticket 10")
		l.lines = nil
		before := r.store.Appends()
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "2", 1)))
		same(t, "calls", l.lines, "reserve/0 do 10", "charge do 12.5", "mail do ticket 10, 12 paid")
		txntest.Equal(t, "appends", r.store.Appends()-before, 1+3)
		o, err := d.Do(t.Context(), r.engine, "3", 3)
		wantKind(t, err, interlock.Definite, ErrCompensated)
		if o.Reason != errSeat.Error() {
			t.Errorf("%+v", o)
		}
		if at2, err := l.reserve().At(2).OutputOf(o); at2 != "ticket 12" || err != nil {
			t.Errorf("%q, %v", at2, err)
		}
	})
}

// TestLargeGroupOfAFunction: a group runs although its sent records do not fit into the append that begins the saga.
func TestLargeGroupOfAFunction(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		const steps = driver.MaxRecords + 8
		a := g.undoable("a")
		d := DefineFunc("order", func(s *Run, in string) error {
			for i := range steps {
				a.At(i).Go(s, in)
			}
			return s.Join()
		}, a)
		r := serve(t, nil, 1, nil, d)
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		txntest.Equal(t, "effects", len(g.did()), steps)
	})
}

// TestFuncMismatch: a saga whose function has changed is not driven; the error has the name
// of the step and the remedy. It continues with the right function.
func TestFuncMismatch(t *testing.T) {
	long := func(name string) Action[int, int] {
		calls := 0
		return Step(name, func(_ context.Context, n int) (int, error) {
			if calls++; calls == 1 && name == "b" {
				return 0, InProgress(50 * time.Second)
			}
			return n, nil
		}).Undo("un"+name, func(context.Context, int, *int) error { return nil })
	}
	a, b, p := long("a"), long("b"), Step("p", func(_ context.Context, n int) (int, error) { return n, nil }).Pivot()
	do := func(s *Run, steps ...Action[int, int]) (err error) {
		for i, step := range steps {
			if _, err = step.Do(s, i); err != nil {
				return err
			}
		}
		return nil
	}
	define := func(body func(s *Run, in int) error) Definition[int] { return DefineFunc("f", body, a, b, p) }
	right := func(s *Run, in int) error { return do(s, a, b, p) }
	for name, c := range map[string]struct {
		body func(s *Run, in int) error
		step string
		says string
	}{
		"other order":  {func(s *Run, in int) error { return do(s, b, a, p) }, "b", "place 2"},
		"step missing": {func(s *Run, in int) error { return do(s, a) }, "b", "returns without it"},
		"step added":   {func(s *Run, in int) error { return do(s, a.Named("new"), a, b) }, "new", `where "a" was sent`},
		"other input": {func(s *Run, in int) error {
			_, err := a.Do(s, int(time.Now().UnixNano()))
			return errors.Join(err, do(s, b, p))
		}, "a", "values that differ between runs belong in a step"},
		"other undo": {func(s *Run, in int) error {
			_, err := a.Do(s, 0)
			_, bad := b.Undo("una", func(context.Context, int, *int) error { return nil }).Do(s, 1)
			return errors.Join(err, bad)
		}, "b", `undo "unb"`},
		"twice": {func(s *Run, in int) error { return do(s, a, a, b) }, "a", "give each call its own"},
		"no undo": {func(s *Run, in int) error {
			return do(s, Step("x", func(context.Context, int) (int, error) { return 0, nil }))
		}, "x", "Uncompensable"},
		"panic": {func(*Run, int) error { panic("oops") }, "", "oops"},
	} {
		runBubble(t, name, func(t *testing.T) {
			a, b = long("a"), long("b")
			d := define(right)
			r := serveBegun(t, nil, d, "1", 7)
			synctest.Wait()
			r.quit()
			err := leftAlone(t, r, define(c.body))
			var m *MismatchError
			if wantKind(t, err, interlock.Bug, nil); errors.As(err, &m) && m.Step != c.step || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%v", err)
			}
			last := serve(t, r.store, 3, nil, d)
			ok(t, txntest.Second(last.engine.Wait(t.Context(), "1")))
		})
	}
}

// leftAlone serves r's store by a definition that does not fit, and returns the first reported
// error.
func leftAlone(t *testing.T, r *rig, d Defined) error {
	t.Helper()
	failed := []error{nil}
	hooks := &observe.Coordinator{
		Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) },
		Foreign: func(e observe.CoordinatorForeign) {
			failed = append(failed, &MismatchError{ID: e.Transaction, Problem: e.Type})
		},
	}
	next := serve(t, r.store, 2, &settings{Options: coordinator.Options{Recheck: time.Hour, Hooks: hooks}}, d)
	time.Sleep(time.Second)
	next.quit()
	return failed[min(1, len(failed)-1)]
}

// TestFuncMisuse: faults are reported when the engine is built or the saga started, and
// nothing begins.
func TestFuncMisuse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &ledger{}
		reserve := l.reserve()
		none := DefineFunc("none", func(*Run, int) error { return nil }, nil, Step[int, int]("x", nil))
		var d *DefinitionError
		if _, err := New(nil, nil, none); !errors.As(err, &d) {
			t.Error(err)
		}
		nobody := DefineFunc[int]("nobody", nil)
		foreign := DefineFunc("foreign", func(s *Run, in int) error { _, err := reserve.Do(s, in); return err })
		refuses := DefineFunc("refuses", func(s *Run, in int) error { return errSeat })
		channel := Step("c", func(context.Context, chan int) (int, error) { return 0, nil }).Uncompensable()
		unwritten := DefineFunc("unwritten", func(s *Run, in int) error { _, err := channel.Do(s, nil); return err }, channel)
		empty := DefineFunc("empty", func(*Run, int) error { return nil })
		twice := DefineFunc("twice", func(s *Run, in int) error { reserve.Go(s, in); reserve.Go(s, in); return s.Join() }, reserve)
		early := DefineFunc("early", func(s *Run, in int) error { _, err := reserve.Go(s, in).Output(); return err }, reserve)
		r := serve(t, nil, 1, nil, nobody, foreign, refuses, unwritten, empty, early, twice)
		for d, says := range map[*Definition[int]]string{&nobody: "give it one", &foreign: "DefineFunc", &refuses: "no seat", &unwritten: "write its input", &early: ErrNoOutput.Error(), &twice: `step "reserve": it is called twice`} {
			if err := d.Start(t.Context(), r.engine, "1", 1); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", d.plan.name, err)
			}
		}
		_, err := r.engine.Look(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		ok(t, txntest.Second(empty.Do(t.Context(), r.engine, "1", 1)))
	})
}

// TestFuncFailsBehindThePivot: it cannot abort; the saga stays and is reported, and a
// fixed function completes it.
func TestFuncFailsBehindThePivot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := &ledger{}
		charge := l.charge()
		d := func(err error) Definition[int] {
			return DefineFunc("f", func(s *Run, in int) error { _, _ = charge.Do(s, 1); return err }, charge)
		}
		var failed []error
		hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) }}
		r := serve(t, nil, 1, &settings{Options: coordinator.Options{Hooks: hooks}}, d(errSeat))
		ok(t, d(nil).Start(t.Context(), r.engine, "1", 1))
		time.Sleep(time.Second)
		synctest.Wait()
		o, err := r.engine.Look(t.Context(), "1")
		if ok(t, err); o.State.Final() || len(failed) == 0 || !errors.Is(failed[0], errSeat) || !strings.Contains(failed[0].Error(), "it failed after the pivot") {
			t.Errorf("%+v, reported %v", o, failed)
		}
		r.quit()
		ok(t, txntest.Second(serve(t, r.store, 2, nil, d(nil)).engine.Wait(t.Context(), "1")))
	})
}

// TestFuncJoinsAtItsEnd: steps that the function has started and not awaited are done
// before its saga has succeeded.
func TestFuncJoinsAtItsEnd(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		a := g.undoable("a")
		d := DefineFunc("f", func(s *Run, in string) error { a.Go(s, in); return nil }, a)
		r := serve(t, nil, 1, nil, d)
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		same(t, "effects", g.did(), "1/a/do")
	})
}
