package tcctest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// functions is a resource of functions; nil ones do nothing.
type functions struct {
	try     func(ctx context.Context, n int, until time.Time) (string, error)
	confirm func(ctx context.Context, n int) error
	cancel  func(ctx context.Context, n int) error
}

func (f functions) Try(ctx context.Context, n int, until time.Time) (string, error) {
	if f.try == nil {
		return "", nil
	}
	return f.try(ctx, n, until)
}

func (f functions) Confirm(ctx context.Context, n int, _ string) error {
	if f.confirm == nil {
		return nil
	}
	return f.confirm(ctx, n)
}

func (f functions) Cancel(ctx context.Context, n int, _ *string) error {
	if f.cancel == nil {
		return nil
	}
	return f.cancel(ctx, n)
}

// account is the receiver of money: the money is announced, and added by the confirmation.
type account struct {
	w    *World
	name string
}

func (a account) Try(ctx context.Context, n int, until time.Time) (string, error) {
	return Hold(ctx, a.w, until, func(v Values) (string, error) { v.Add(a.name+" announced", n); return "", nil })
}

func (a account) Confirm(ctx context.Context, n int, _ string) error {
	return a.w.Confirm(ctx, func(v Values) error {
		v.Add(a.name+" announced", -n)
		v.Add(a.name, n)
		return nil
	})
}

func (a account) Cancel(ctx context.Context, n int, _ *string) error {
	return a.w.Cancel(ctx, func(v Values) error { v.Add(a.name+" announced", -n); return nil })
}

// each runs a transaction of one branch for each resource.
func each(s *Scene, resources map[string]tcc.Resource[int, string]) {
	var all []tcc.Branch
	for name, r := range resources {
		all = append(all, Define(s, name, r).Try(wanted))
	}
	s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
		_, err := m.Run(ctx, "order", id, all...)
		return err
	}
}

// swept sweeps a world.
func swept(w *World, resources map[string]tcc.Resource[int, string]) func(context.Context, tcc.Ask) error {
	return func(ctx context.Context, ask tcc.Ask) error {
		return w.Sweep(ctx, ask, func(ctx context.Context) error {
			return resources[branch.From(ctx).Branch].Cancel(ctx, wanted, nil)
		})
	}
}

// sound are transactions without findings.
var sound = map[string]struct {
	scene func(w *World, s *Scene)
	runs  int // the minimum number of runs
}{
	"two shelves": {func(w *World, s *Scene) {
		all := map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "b": shelf{w, "b"}}
		each(s, all)
		s.Sweep = swept(w, all)
	}, 80},
	"one shelf": {func(w *World, s *Scene) {
		all := map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}}
		each(s, all)
		s.Sweep = swept(w, all)
	}, 40},
	"three, and no sweep": {func(w *World, s *Scene) {
		each(s, map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "b": shelf{w, "b"}, "c": shelf{w, "c"}})
	}, 80},
	"two branches of a resource": {func(w *World, s *Scene) {
		d := Define(s, "shelf", shelf{w, "a"})
		s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
			_, err := m.Run(ctx, "order", id, d.Try(1).As("x"), d.Try(3).As("y"))
			return err
		}
	}, 50},
	// As examples/booking: a room and a seat, each sale is written down.
	"booking": {func(w *World, s *Scene) {
		w.Set("a", "2") // the last ones
		noted := func(item string) tcc.Resource[int, string] {
			of := shelf{w, item}
			return functions{of.Try, func(ctx context.Context, n int) error {
				return w.Confirm(ctx, func(v Values) error {
					v.Add(item+" held", -n)
					v.Add(item+" sold", n)
					v["sale of "+item+" to "+branch.From(ctx).Transaction] = fmt.Sprint(n)
					return nil
				})
			}, func(ctx context.Context, n int) error { return of.Cancel(ctx, n, nil) }}
		}
		all := map[string]tcc.Resource[int, string]{"a": noted("a"), "b": noted("b")}
		each(s, all)
		s.Sweep = swept(w, all)
		s.Visible = func() any { return w.Get("a sold") + w.Get("b sold") }
		s.Invariant = func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			v := w.draft()
			if v.Add("a", 0)+v.Add("a held", 0)+v.Add("a sold", 0) != 2 {
				return fmt.Errorf("%v", v)
			}
			return nil
		}
	}, 80},
	// As examples/transfer: money is held here, announced there, and moves.
	"transfer": {func(w *World, s *Scene) {
		all := map[string]tcc.Resource[int, string]{"debit": shelf{w, "a"}, "credit": account{w, "b"}}
		each(s, all)
		s.Sweep = swept(w, all)
		s.Visible = func() any { return []string{w.Get("b"), w.Get("a sold")} }
	}, 80},
	"given up at once": {func(w *World, s *Scene) {
		each(s, map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "b": shelf{w, "b"}})
		s.Options = &tcc.Options{Retry: tcc.Policy{Attempts: 1, Refusals: 1}}
	}, 60},
	"a table of its own": {func(w *World, s *Scene) {
		r := newRoom(wanted)
		each(s, map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "b": r})
		s.Snapshot = func() any { return r.snapshot() + w.Snapshot().(string) }
		s.Visible = func() any { r.mu.Lock(); defer r.mu.Unlock(); return r.sold }
		s.Sweep = func(ctx context.Context, ask tcc.Ask) error {
			return errors.Join(r.sweep(ctx, ask), swept(w, map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}})(ctx, ask))
		}
	}, 80},
	"takes long": {func(w *World, s *Scene) {
		of := shelf{w, "a"}
		slow := functions{func(ctx context.Context, n int, until time.Time) (string, error) {
			time.Sleep(5 * time.Second)
			return of.Try(ctx, n, until)
		}, func(ctx context.Context, n int) error {
			time.Sleep(5 * time.Second)
			return of.Confirm(ctx, n, "")
		}, func(ctx context.Context, n int) error { return of.Cancel(ctx, n, nil) }}
		each(s, map[string]tcc.Resource[int, string]{"a": slow, "b": shelf{w, "b"}})
	}, 50},
	"at work at first": {func(w *World, s *Scene) {
		of, calls := shelf{w, "a"}, 0
		busy := functions{func(ctx context.Context, n int, until time.Time) (string, error) {
			if calls++; calls%2 == 1 {
				return "", branch.InProgress(time.Second)
			}
			return of.Try(ctx, n, until)
		}, func(ctx context.Context, n int) error { return of.Confirm(ctx, n, "") }, func(ctx context.Context, n int) error { return of.Cancel(ctx, n, nil) }}
		each(s, map[string]tcc.Resource[int, string]{"a": busy})
	}, 30},
	"only looks": {func(w *World, s *Scene) {
		each(s, map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "look": functions{try: func(context.Context, int, time.Time) (string, error) {
			return "", nil
		}}})
	}, 50},
	"holds for long": {func(w *World, s *Scene) {
		all := map[string]tcc.Resource[int, string]{"a": shelf{w, "a"}, "b": shelf{w, "b"}}
		each(s, all)
		s.Sweep, s.Options = swept(w, all), &tcc.Options{Hold: 20 * time.Hour}
	}, 80},
}

// TestSoundTransactionsPass: there are no findings, and all scenarios were run.
func TestSoundTransactionsPass(t *testing.T) {
	for name, c := range sound {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, runs := explored(t, func() Scene {
				w := &World{}
				for _, key := range []string{"a", "b", "c"} {
					w.Set(key, "10")
				}
				s := Scene{Snapshot: w.Snapshot}
				c.scene(w, &s)
				return s
			})
			for _, f := range found {
				t.Error(f)
			}
			if t.Log(name, runs, "runs"); runs < c.runs {
				t.Errorf("only %d runs", runs)
			}
		})
	}
}
