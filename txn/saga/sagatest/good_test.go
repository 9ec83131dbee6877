package sagatest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/saga"
)

// sound are sagas without findings.
var sound = map[string]struct {
	define func(w *World) saga.Definition[int]
	runs   int // the minimum number of runs
}{
	"pivot in the middle": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), good(w, "b"), take(w, "p").Pivot(), take(w, "z"))
	}, 83},
	"no pivot": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), good(w, "b"))
	}, 53},
	"one step": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"))
	}, 27},
	"group": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), saga.Parallel(good(w, "b"), good(w, "c")), take(w, "p").Pivot())
	}, 97},
	"group at the end": {func(w *World) saga.Definition[int] {
		return saga.Define("order", saga.Parallel(good(w, "b"), good(w, "c")))
	}, 41},
	"wait": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), saga.Sleep[int]("cool down", 24*time.Hour), good(w, "b"), take(w, "p").Pivot(), saga.Sleep[int]("rest", time.Hour), take(w, "z"))
	}, 97},
	"list": {func(w *World) saga.Definition[int] {
		a, b := good(w, "a"), good(w, "b")
		return saga.DefineList("order", func(n int) ([]saga.Stage[int], error) {
			var all []saga.Stage[int]
			for i := range n {
				all = append(all, a.At(i))
			}
			return append(all, b.Named("other"), take(w, "p").Pivot()), nil
		}, a, b)
	}, 113},
	"function": {func(w *World) saga.Definition[int] {
		a, b, p := good(w, "a"), good(w, "b"), take(w, "p").Pivot()
		return saga.DefineFunc("order", func(s *saga.Run, n int) error {
			if _, err := a.At(1).Do(s, n); err != nil {
				return err
			}
			a.At(2).Go(s, n+1)
			b.Go(s, n)
			if err := s.Join(); err != nil {
				return err
			}
			if err := s.Sleep("rest", 10*time.Minute); err != nil {
				return err
			}
			_, err := p.Do(s, n)
			return err
		}, a, b, p)
	}, 107},
	"only reads": {func(w *World) saga.Definition[int] {
		look := saga.Step("look", func(context.Context, int) (string, error) { return w.Get("a"), nil }).Uncompensable()
		return saga.Define("order", look, good(w, "a"), look.Named("again"), take(w, "p").Pivot())
	}, 89},
	"given up at once": {func(w *World) saga.Definition[int] {
		never := saga.Policy{Attempts: 1, Undos: 3}
		return saga.Define("order", good(w, "a").Retry(never), good(w, "b").Retry(never), take(w, "p").Retry(never).Pivot())
	}, 79},
	"takes long": {func(w *World) saga.Definition[int] {
		slow := saga.Step("slow", func(ctx context.Context, n int) (string, error) {
			for range 10 {
				time.Sleep(20 * time.Second)
				saga.Heartbeat(ctx)
			}
			return Effect(ctx, w, func(v Values) (string, error) { return fmt.Sprint(v.Add("c", -n)), nil })
		}).Undo("fast", func(ctx context.Context, n int, _ *string) error {
			return w.Undo(ctx, func(v Values) error { v.Add("c", n); return nil })
		})
		return saga.Define("order", slow, take(w, "p").Pivot())
	}, 49},
	"only waits": {func(w *World) saga.Definition[int] {
		return saga.Define("order", saga.Sleep[int]("w", time.Hour))
	}, 9},
	"nothing": {func(w *World) saga.Definition[int] {
		return saga.DefineFunc("order", func(*saga.Run, int) error { return nil })
	}, 7},
	"limited": {func(w *World) saga.Definition[int] {
		return saga.Define("order", good(w, "a"), saga.Sleep[int]("w", time.Minute), good(w, "b"), take(w, "p").Pivot()).Timeout(time.Hour)
	}, 91},
}

// TestSoundSagasPass: there are no findings, and all scenarios were run.
func TestSoundSagasPass(t *testing.T) {
	for name, c := range sound {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, runs := explored(t, worldly(c.define))
			for _, f := range found {
				t.Error(f)
			}
			if t.Log(name, runs, "runs"); runs < c.runs {
				t.Errorf("only %d runs", runs)
			}
		})
	}
}

// TestIgnoredLinesDoNotCount: a log that grows with each call is no finding.
func TestIgnoredLinesDoNotCount(t *testing.T) {
	t.Parallel()
	scene := func(ignore func(string) bool) func() Scene[int] {
		return func() Scene[int] {
			s := newShop()
			log := saga.Step("log", func(context.Context, int) (string, error) { s.add("log", 1); return "", nil })
			return Scene[int]{Saga: saga.Define("order", log.Uncompensable(), log.Named("p").Pivot()), Snapshot: s.snapshot, Ignore: ignore}
		}
	}
	if found, _ := explored(t, scene(nil)); len(found) < 3 {
		t.Errorf("without Ignore: %v", found)
	}
	found, _ := explored(t, scene(func(line string) bool { return line == "" || line[0] != '{' && line[0] != '}' }))
	if len(found) > 0 {
		t.Errorf("with Ignore: %v", found)
	}
}
