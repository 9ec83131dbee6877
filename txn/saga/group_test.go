package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestGroup: steps of a group are called concurrently, and the next stage begins when all
// are done. If one is refused, the others are undone, also those with an unknown outcome,
// and not those that have not happened.
func TestGroup(t *testing.T) {
	for name, c := range map[string]struct {
		fails map[string][]error
		want  []string // sorted
		took  time.Duration
	}{
		"done":            {nil, []string{"1/a/do", "1/b/do", "1/c/do", "1/p/do"}, 2 * time.Second},
		"one is slow":     {map[string][]error{"b": {InProgress(5 * time.Second)}}, []string{"1/a/do", "1/b/do", "1/c/do", "1/p/do"}, 8 * time.Second},
		"one refused":     {map[string][]error{"b": {Fail(errSeat)}}, []string{"1/a/do", "1/a/undo", "1/c/do", "1/c/undo"}, time.Second},
		"one not known":   {map[string][]error{"a": always(errNetwork), "b": {Fail(errSeat)}}, []string{"1/a/undo?", "1/c/do", "1/c/undo"}, time.Second},
		"one never began": {map[string][]error{"a": always(Retry(errNetwork)), "b": {Fail(errSeat)}}, []string{"1/c/do", "1/c/undo"}, time.Second},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			step := func(name string) Action[string, string] {
				a := g.undoable(name, c.fails[name]...)
				act := a.s.act
				a.s.act = func(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
					time.Sleep(time.Second)
					return act(ctx, input)
				}
				return a
			}
			d := Define("order", Parallel(step("a"), step("b"), step("c")), step("p").Undo("", nil).Pivot())
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			if (err == nil) != slices.Contains(c.want, "1/p/do") {
				t.Error(err)
			}
			effects := g.did()
			slices.Sort(effects)
			same(t, "effects", effects, c.want...)
			txntest.Equal(t, "time", time.Since(from), c.took)
		})
	}
}

// TestBeats: with heartbeats a step may take longer than its timeout, but not longer than its MaxTime;
// without them it may not.
func TestBeats(t *testing.T) {
	for name, c := range map[string]struct {
		step  func(g *target) Action[string, string]
		calls int
		took  time.Duration
		limit string // in the error
	}{
		"beats":    {func(g *target) Action[string, string] { return g.beat("a", 40*time.Second).Timeout(11 * time.Second) }, 1, 40 * time.Second, ""},
		"too slow": {func(g *target) Action[string, string] { return g.beat("a", 40*time.Second).Timeout(9 * time.Second) }, 2, 20 * time.Second, "9s"},
		"too long": {func(g *target) Action[string, string] {
			return g.beat("a", 40*time.Second).Timeout(11 * time.Second).MaxTime(25 * time.Second)
		}, 2, 60 * time.Second, "25s"},
	} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", c.step(g).Retry(Policy{Attempts: 2, First: time.Nanosecond, Max: time.Nanosecond}))
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			if (err == nil) != (c.calls == 1) || err != nil && !strings.Contains(err.Error(), "the call took longer than "+c.limit) {
				t.Error(err)
			}
			if took := time.Since(from); took < c.took || took > c.took+time.Millisecond {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestRetryByClass: errors of a class with its own policy have their own count and delay.
func TestRetryByClass(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		fails := []error{Retry(errSeat), Retry(errSeat), errNetwork, Retry(errSeat), Retry(errSeat), errNetwork}
		d := Define("order", g.undoable("a", fails...).Retry(Policy{First: time.Millisecond, Attempts: 7}).
			RetryOn(branch.ClassRetry, Policy{First: 20 * time.Second, Max: 20 * time.Second, Attempts: 5}).
			RetryOn(branch.ClassUnknown, Policy{First: 6 * time.Second, Max: 6 * time.Second, Attempts: 3}))
		r := serve(t, nil, 1, nil, d)
		from := time.Now()
		_, err := d.Do(t.Context(), r.engine, "1", "in")
		ok(t, err)
		txntest.Equal(t, "time", time.Since(from), 4*10*time.Second+2*3*time.Second)
		spent := Define("spent", g.undoable("b", fails...).RetryOn(branch.ClassUnknown, Policy{Attempts: 2}))
		r = serve(t, nil, 1, nil, spent)
		_, err = spent.Do(t.Context(), r.engine, "1", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
	})
}

// TestList: the input sets the length of a list. Its steps and their outputs differ by index or
// key, and faults are reported when it is started.
func TestList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls []string
		add := Step("add", func(ctx context.Context, n int) (int, error) {
			c := From(ctx)
			calls = append(calls, c.Branch+"/"+c.Step)
			return len(calls), nil
		}).Undo("take", func(ctx context.Context, _ int, out *int) error {
			calls = append(calls, fmt.Sprint("undo ", From(ctx).Branch, "/", From(ctx).Step, " ", *out))
			return nil
		})
		unknown := Step("x", func(context.Context, int) (int, error) { return 0, nil }).Undo("unx", func(context.Context, int, *int) error { return nil })
		last := Step("last", func(_ context.Context, n int) (int, error) {
			if n == 2 {
				return 0, Fail(errSeat)
			}
			return n, nil
		}).Pivot()
		d := DefineList("loop", func(n int) (all []Stage[int], err error) {
			switch n {
			case -1:
				return nil, errSeat
			case -2:
				return []Stage[int]{add, add}, nil
			case -3:
				return []Stage[int]{unknown}, nil
			}
			for i := range n {
				all = append(all, add.At(i))
			}
			return append(all, add.Named("once more"), last), nil
		}, add)
		r := serve(t, nil, 1, nil, d)
		o, err := d.Do(t.Context(), r.engine, "1", 3)
		ok(t, err)
		second, err := add.At(1).OutputOf(o)
		if named, _ := add.Named("once more").OutputOf(o); second != 2 || named != 4 || err != nil {
			t.Errorf("%d, %d, %v", second, named, err)
		}
		_, err = d.Do(t.Context(), r.engine, "2", 2)
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, "calls", calls, "add/0", "add/1", "add/2", "once more/", "add/0", "add/1", "once more/",
			"undo once more/ 7", "undo add/1 6", "undo add/0 5")
		for input, fix := range map[int]string{-1: "no seat", -2: "used twice", -3: "name the step there"} {
			if err := d.Start(t.Context(), r.engine, "bad", input); err == nil || !strings.Contains(err.Error(), fix) {
				t.Errorf("%d: %v", input, err)
			}
		}
		if _, err := r.engine.Look(t.Context(), "bad"); !errors.Is(err, ErrNone) {
			t.Error(err)
		}
	})
}

// TestParked: a saga that waits for days is not in memory meanwhile, continues in time,
// and keeps its count of attempts.
func TestParked(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		var attempts []int
		day := 24 * time.Hour
		d := Define("order", Sleep[string]("cool-off", 3*day), Step("a", func(ctx context.Context, _ string) (string, error) {
			attempts = append(attempts, From(ctx).Attempt)
			return "", Retry(errNetwork)
		}).Undo("una", func(ctx context.Context, _ string, _ *string) error { return g.take(From(ctx).Key()) }).Retry(Policy{First: 2 * day, Max: 2 * day, Attempts: 4}), g.undoable("b"))
		r := serveBegun(t, &settings{Options: coordinator.Options{Poll: 10 * time.Minute}}, d, "1", "in")
		synctest.Wait()
		from := time.Now()
		for time.Since(from) < 7*day {
			r.quit()
			r.serve(t, 2+int64(time.Since(from)/day)) // each owner finds it, and does not drive it
			time.Sleep(day + time.Hour)
		}
		same(t, "attempts", strings.Fields(fmt.Sprint(attempts)), "[1", "2", "3", "4]")
		o, err := r.engine.Look(t.Context(), "1")
		if ok(t, err); o.State != Compensated || len(r.records(t, "1")) > 16 {
			t.Errorf("%+v: %v", o, r.records(t, "1"))
		}
		same(t, "effects", g.did(), "1/a/undo") // the new owner cannot know that there was no later call
	})
}

// TestParkedElsewhere: a wait that a former owner had claimed is due at its end, and not when the
// former owner would have read it again.
func TestParkedElsewhere(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", Sleep[string]("w", 72*time.Hour), g.undoable("a"))
		r := serveBegun(t, nil, d, "1", "in")
		synctest.Wait()
		before, err := r.engine.Look(t.Context(), "1")
		ok(t, err)
		heads, err := r.store.Claim(t.Context(), 0, r.claim.Token(), before.Due, time.Now().Add(time.Hour), 1)
		if ok(t, err); len(heads) != 1 {
			t.Fatal("there is nothing to claim")
		}
		r.quit()
		next := serve(t, r.store, 2, nil, d)
		after, err := next.engine.Look(t.Context(), "1")
		if ok(t, err); !after.Due.Equal(before.Due) || time.Until(before.Due) < 71*time.Hour {
			t.Errorf("due at %v, then at %v", before.Due, after.Due)
		}
	})
}

// TestRetryByClassOverLongWaits: the count of a step's errors of a class includes those before
// waits outside of memory. So the step is given up, by its owner and by successors.
func TestRetryByClassOverLongWaits(t *testing.T) {
	for _, heirs := range []bool{false, true} {
		onTarget(t, func(t *testing.T, g *target) {
			var waits []time.Duration
			d := Define("order", g.undoable("a", always(Retry(errSeat))...).
				RetryOn(branch.ClassRetry, Policy{First: 5 * time.Minute, Max: time.Hour, Attempts: 4}))
			o := &settings{saga: Options{Hooks: &observe.Saga{Tried: func(e observe.SagaTried) { waits = append(waits, e.Again) }}}}
			r := serveBegun(t, o, d, "1", "in")
			for n := range int64(12) {
				time.Sleep(10 * time.Minute)
				if heirs {
					r.quit()
					r.serve(t, n+2)
				}
			}
			looked, err := r.engine.Look(t.Context(), "1")
			if ok(t, err); looked.State != Compensated || len(waits) != 4 || waits[1] != 5*time.Minute || waits[2] != 10*time.Minute {
				t.Errorf("heirs %v: %v after waits of %v", heirs, looked.State, waits)
			}
		})
	}
}

// TestListUndoesAsChosen: the undo of a list's step uses that step's options, not those of the
// declared step of its name, also by a new owner. If the list fails, it uses those of the declared
// step.
func TestListUndoesAsChosen(t *testing.T) {
	for name, c := range map[string]struct {
		restart, broken, wrong bool
		undos                  int // calls until the undo is given up
	}{
		"by its owner":       {undos: 3},
		"by the next one":    {restart: true, undos: 3},
		"with a broken list": {restart: true, broken: true, undos: 2},
		"with a wrong list":  {restart: true, wrong: true, undos: 2},
	} {
		runBubble(t, name, func(t *testing.T) {
			var calls int
			var longest time.Duration
			broken, wrong := false, false
			action := Step("http", func(context.Context, string) (string, error) { return "", nil }).
				Undo("http", func(ctx context.Context, _ string, _ *string) error {
					calls++
					at := time.Now()
					<-ctx.Done()
					longest = max(longest, time.Since(at))
					return ctx.Err()
				}).Retry(Policy{Undos: 2}).Timeout(time.Minute)
			refuse := Step("refuse", func(context.Context, string) (string, error) { return "", Fail(errSeat) }).Pivot()
			d := DefineList("list", func(string) ([]Stage[string], error) {
				if broken {
					panic("the list")
				}
				a := action.Named("a").Retry(Policy{Undos: 3}).Timeout(time.Second)
				if wrong {
					return []Stage[string]{a, a, refuse}, nil
				}
				return []Stage[string]{a, refuse}, nil
			}, action)
			r := serveBegun(t, nil, d, "1", "")
			if c.restart {
				time.Sleep(500 * time.Millisecond)
				r.quit()
				calls, longest, broken, wrong = 0, 0, c.broken, c.wrong
				r = serve(t, r.store, 2, nil, d)
			}
			time.Sleep(time.Hour)
			o, err := r.engine.Look(t.Context(), "1")
			ok(t, err)
			want := time.Second
			if c.broken || c.wrong {
				want = time.Minute
			}
			if o.State != DeadLetter || calls != c.undos || longest != want {
				t.Errorf("%s after %d undos of at most %v", o.State, calls, longest)
			}
		})
	}
}
