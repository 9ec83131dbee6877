package sagatest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/saga"
)

var errBusy = errors.New("busy")

// unsound are sagas with one mistake each.
var unsound = map[string]struct {
	define func(w *World, s *shop) saga.Definition[int]
	want   []string // findings, as kind:step
	says   string   // the first one's text contains it
}{
	"undo forgets a part": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), taking(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			return untake(s, ctx, "b", n-1)
		}), take(w, "p").Pivot())
	}, []string{"missing undo:b"}, `-   "b": 10`},
	"undo gives up": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a").Undo("una", func(context.Context, int, *string) error { return saga.Fail(errBusy) }), take(w, "p").Pivot())
	}, []string{"missing undo:a"}, "failed permanently, and the saga is a dead letter: busy"},
	"undo gives up when called again": {func(w *World, s *shop) saga.Definition[int] {
		a := good(w, "a")
		return saga.Define("order", a.Undo("una", func(ctx context.Context, n int, _ *string) error {
			if !s.first(saga.From(ctx).Key()) {
				return saga.Fail(errBusy)
			}
			return w.Undo(ctx, func(v Values) error { v.Add("a", n); return nil })
		}), take(w, "p").Pivot())
	}, []string{"undo not idempotent:a"}, "dead letter"},
	"no undo, and it leaves something": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), taking(s, "b").Uncompensable(), take(w, "p").Pivot())
	}, []string{"missing undo:b"}, "declared Uncompensable"},
	"undo twice": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), taking(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			if out == nil && !s.saw(doing(ctx)) {
				s.first(doing(ctx)) // the late one is refused
				return nil
			}
			s.add("b", n)
			return nil
		}), take(w, "p").Pivot())
	}, []string{"undo not idempotent:b"}, "the undo was repeated"},
	"undo by its output": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			if out == nil {
				s.first(doing(ctx))
				return nil
			}
			return untake(s, ctx, "b", n)
		}), take(w, "p").Pivot())
	}, []string{"undo needs the output:b"}, "undone without its output"},
	"undo by its output, given up at once": { // its action has no finding
		func(w *World, s *shop) saga.Definition[int] {
			return saga.Define("order", taking(s, "b").Retry(saga.Policy{Attempts: 1}).Undo("unb", func(ctx context.Context, n int, out *string) error {
				if out == nil {
					s.first("undone " + doing(ctx))
					return nil
				}
				return untake(s, ctx, "b", n)
			}), take(w, "p").Pivot())
		}, []string{"undo needs the output:b"}, "undone without its output"},
	"undo panics without its output": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			_ = *out
			return untake(s, ctx, "b", n)
		}), take(w, "p").Pivot())
	}, []string{"undo needs the output:b"}, "nil pointer"},
	"undo of what was not done": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			s.first(doing(ctx))
			if s.first(saga.From(ctx).Key()) {
				s.add("b", n)
			}
			return nil
		}), take(w, "p").Pivot())
	}, []string{"undo needs the output:b"}, "was lost, and its outcome was unknown"},
	"last step, undone without its output": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), taking(s, "b").Undo("unb", func(context.Context, int, *string) error { return nil }))
	}, []string{"undo needs the output:b"}, "its answer was lost permanently"},
	"action twice": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", always(s, "b").Undo("unb", func(ctx context.Context, n int, out *string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stock["b"], s.seen["closed"] = 10, true
			return nil
		}), take(w, "p").Pivot())
	}, []string{"action not idempotent:b"}, "+   \"b\": 6"},
	"action refused when repeated": {func(w *World, s *shop) saga.Definition[int] {
		a := good(w, "a")
		return saga.Define("order", refusing(s, a, "a").Undo("una", func(ctx context.Context, n int, _ *string) error {
			return w.Undo(ctx, func(v Values) error { v.Add("a", n); return nil })
		}), take(w, "p").Pivot())
	}, []string{"action not idempotent:a"}, "its repetition was refused: busy"},
	"pivot twice": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), always(s, "c").Pivot(), take(w, "z"))
	}, []string{"pivot not repeatable:c"}, "was repeated"},
	"pivot refused when repeated": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), refusing(s, take(w, "p"), "p").Pivot())
	}, []string{"pivot not repeatable:p"}, "its repetition was refused"},
	"step after the pivot twice": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", take(w, "p").Pivot(), always(s, "c"))
	}, []string{"action not idempotent:c"}, "+   \"c\": 6"},
	"step after the pivot refuses": {func(w *World, s *shop) saga.Definition[int] {
		no := saga.Step("z", func(context.Context, int) (string, error) { return "", saga.Fail(errBusy) })
		return saga.Define("order", good(w, "a"), take(w, "p").Pivot(), no)
	}, []string{"step after the pivot refuses:z"}, "refuses it permanently: busy"},
	"step after the pivot refused when repeated": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", take(w, "p").Pivot(), refusing(s, take(w, "z"), "z"))
	}, []string{"step after the pivot refuses:z"}, "the answer of z was lost"},
	"late action": {func(w *World, s *shop) saga.Definition[int] {
		b := saga.Step("b", func(ctx context.Context, n int) (string, error) {
			if s.first(saga.From(ctx).Key()) {
				s.add("b", -n)
			}
			return "", nil
		})
		return saga.Define("order", b.Undo("unb", func(ctx context.Context, n int, _ *string) error {
			if s.saw(doing(ctx)) && s.first(saga.From(ctx).Key()) {
				s.add("b", n)
			}
			return nil
		}), take(w, "p").Pivot())
	}, []string{"late action accepted:b"}, "was lost, and its outcome was unknown, it was undone, and then it arrived for the first time"},
	"undo forgets the call": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, _ *string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if key := doing(ctx); s.seen[key] {
				s.stock["b"] += n
				delete(s.seen, key) // and so does not recognize a late one
			} else {
				s.seen["undone "+key] = true
			}
			return nil
		}), take(w, "p").Pivot())
	}, []string{"late action accepted:b"}, "and then it arrived again"},
	"action twice at its first attempt": {func(w *World, s *shop) saga.Definition[int] {
		a := saga.Step("a", func(ctx context.Context, n int) (string, error) {
			if saga.From(ctx).Attempt == 1 {
				s.add("a", -n)
			}
			return "", nil
		})
		return saga.Define("order", a.Pivot())
	}, []string{"pivot not repeatable:a"}, "a arrived twice"},
	"undo twice at its first attempt": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, _ *string) error {
			if again := !s.first("undone " + doing(ctx)); s.saw(doing(ctx)) && (!again || saga.From(ctx).Attempt == 1) {
				s.add("b", n)
			}
			return nil
		}), take(w, "p").Pivot())
	}, []string{"undo not idempotent:b"}, "its undo arrived twice"},
	"undo only at its first attempt": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, _ *string) error {
			if saga.From(ctx).Attempt > 1 {
				return nil
			}
			return untake(s, ctx, "b", n)
		}), take(w, "p").Pivot())
	}, []string{"missing undo:b"}, "its first undo was lost"},
	"action once for each owner": { // only a crash shows it
		func(w *World, s *shop) saga.Definition[int] {
			c := saga.Step("c", func(ctx context.Context, n int) (string, error) {
				if call := saga.From(ctx); s.first(fmt.Sprint(call.Epoch, call.Key())) {
					s.add("c", -n)
				}
				return "", nil
			})
			return saga.Define("order", good(w, "a"), c.Pivot())
		}, []string{"pivot not repeatable:c"}, "there is no other fault, the engine crashed before the answer of c, and another one continued"},
	"undo once for each owner": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", taking(s, "b").Undo("unb", func(ctx context.Context, n int, _ *string) error {
			s.first("undone " + doing(ctx))
			if call := saga.From(ctx); s.saw(doing(ctx)) && s.first(fmt.Sprint(call.Epoch, call.Key())) {
				s.add("b", n)
			}
			return nil
		}), take(w, "p").Pivot())
	}, []string{"undo not idempotent:b"}, "the engine crashed before the answer of the undo of b"},
	"undo to an old value": { // only two that are undone at the same time show it
		func(w *World, s *shop) saga.Definition[int] {
			restoring := func(name string, wait time.Duration) action {
				was := 0
				return saga.Step(name, func(ctx context.Context, n int) (string, error) {
					time.Sleep(wait)
					if key := saga.From(ctx).Key(); s.saw("undone " + key) {
						return "", saga.Fail(errBusy)
					} else if s.first(key) {
						was = s.snapshot().(map[string]int)["c"]
						s.add("c", -n)
					}
					return "", nil
				}).Undo("un"+name, func(ctx context.Context, n int, _ *string) error {
					time.Sleep(wait)
					if s.first("undone "+doing(ctx)) && s.saw(doing(ctx)) {
						s.add("c", was-s.snapshot().(map[string]int)["c"])
					}
					return nil
				})
			}
			return saga.Define("order", saga.Parallel(restoring("x", time.Second), restoring("y", 2*time.Second)), take(w, "p").Pivot())
		}, []string{"missing undo:"}, "p was refused"},
	"for ever at work": {func(w *World, s *shop) saga.Definition[int] {
		ever := saga.Step("a", func(context.Context, int) (string, error) { return "", saga.InProgress(time.Hour) })
		return saga.Define("order", ever.Pivot())
	}, []string{"never ends:a"}, "RUNNING"},
	"undo for ever at work": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", good(w, "a").Undo("una", func(context.Context, int, *string) error { return saga.InProgress(time.Hour) }), take(w, "p").Pivot())
	}, []string{"never ends:a"}, "UNDOING"},
	"two mistakes in a group": {func(w *World, s *shop) saga.Definition[int] {
		nothing := func(context.Context, int, *string) error { return nil }
		return saga.Define("order", saga.Parallel(taking(s, "a").Undo("una", nothing), good(w, "b"), taking(s, "c").Undo("unc", nothing)), take(w, "p").Pivot())
	}, []string{"missing undo:a", "missing undo:c"}, `"a": 10`},
	"mistake in the last group": {func(w *World, s *shop) saga.Definition[int] {
		return saga.Define("order", saga.Parallel(good(w, "a"), taking(s, "b").Undo("unb", func(context.Context, int, *string) error { return nil })))
	}, []string{"missing undo:b"}, "b was done, and later and concurrent steps were refused, and it was undone"},
	"mistake of an index": {func(w *World, s *shop) saga.Definition[int] {
		b := taking(s, "b").Undo("unb", func(context.Context, int, *string) error { return nil })
		return saga.DefineFunc("order", func(run *saga.Run, n int) error {
			_, err := b.At(7).Do(run, n)
			if err == nil {
				_, err = take(w, "p").Pivot().Do(run, n)
			}
			return err
		}, b)
	}, []string{"missing undo:b#7"}, "b#7"},
}

// doing returns the key of the action whose undo is called.
func doing(ctx context.Context) string {
	c := saga.From(ctx)
	return strings.TrimSuffix(c.Key(), string(c.Operation)) + "do"
}

// taking is a guarded step on a shop: once for a key, not after its undo.
func taking(s *shop, name string) action {
	return saga.Step(name, func(ctx context.Context, n int) (string, error) {
		key := saga.From(ctx).Key()
		if s.saw("undone " + key) {
			return "", saga.Fail(errBusy)
		}
		if s.first(key) {
			s.add(name, -n)
		}
		return fmt.Sprint(n), nil
	})
}

// untake returns the undo of taking, for a number of units.
func untake(s *shop, ctx context.Context, name string, n int) error {
	if s.first("undone "+doing(ctx)) && s.saw(doing(ctx)) {
		s.add(name, n)
	}
	return nil
}

// always takes at each call.
func always(s *shop, name string) action {
	return saga.Step(name, func(_ context.Context, n int) (string, error) {
		if s.saw("closed") {
			return "", saga.Fail(errBusy)
		}
		s.add(name, -n)
		return "", nil
	})
}

// refusing refuses all calls of a key but the first, which a guarded effect answers.
func refusing(s *shop, guarded action, name string) action {
	w := &World{}
	return saga.Step(name, func(ctx context.Context, n int) (string, error) {
		if !s.first(saga.From(ctx).Key()) {
			return "", saga.Fail(errBusy)
		}
		return Effect(ctx, w, func(Values) (string, error) { return "", nil })
	})
}

// TestUnsoundSagasAreConvicted: each has exactly the finding of its mistake, for the step with the
// mistake.
func TestUnsoundSagasAreConvicted(t *testing.T) {
	kinds := map[string]bool{}
	for name, c := range unsound {
		for _, want := range c.want {
			kind, _, _ := strings.Cut(want, ":")
			kinds[kind] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, runs := explored(t, func() Scene[int] {
				w, s := &World{}, newShop()
				return Scene[int]{Saga: c.define(w, s), Input: 2, Snapshot: func() any {
					return map[string]any{"shop": s.snapshot(), "world": w.Snapshot()}
				}}
			})
			var got []string
			for _, f := range found {
				got = append(got, fmt.Sprintf("%s:%s", f.Kind, f.Step))
				t.Log(f)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Fatalf("found %q in %d runs, want %q", got, runs, c.want)
			}
			if text := strings.Join(strings.Fields(found[0].String()), " "); !strings.Contains(text, strings.Join(strings.Fields(c.says), " ")) {
				t.Errorf("it does not say %q", c.says)
			}
		})
	}
	for _, k := range []Kind{MissingUndo, UndoNotIdempotent, UndoNeedsOutput, ActionNotIdempotent, PivotNotRepeatable, LateActionAccepted, StepAfterPivotRefuses, NeverEnds} {
		if !kinds[string(k)] {
			t.Errorf("nothing shows %s", k)
		}
	}
}
