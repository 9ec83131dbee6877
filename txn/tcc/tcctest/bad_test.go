package tcctest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// unsound are rooms with one mistake each: the branch b of a transaction whose other
// branch, a, is sound.
var unsound = map[string]struct {
	wrong func(r *room, s *Scene)
	want  []string // findings, as kind:branch
	says  string   // the first one's text contains it
}{
	"try takes at each call": {func(r *room, _ *Scene) {
		r.try = func(_ context.Context, id string, n int) error {
			if r.states[id] == cancelled || r.states[id] == confirmed {
				return branch.Fail(errBusy)
			}
			r.free, r.held, r.states[id] = r.free-n, r.held+n, held
			return nil
		}
	}, []string{"try not idempotent:b"}, "- room free: 8 - room held: 0 + room free: 6 + room held: 2"},
	"try refuses its repetition": {func(r *room, _ *Scene) {
		r.try = func(ctx context.Context, id string, n int) error {
			if r.states[id] != "" {
				return branch.Fail(errBusy)
			}
			return r.takes(ctx, id, n)
		}
	}, []string{"try not idempotent:b"}, "the first try was done, and its repetition was refused: busy"},
	"try twice at its first attempt": {func(r *room, _ *Scene) {
		r.try = func(ctx context.Context, id string, n int) error {
			if r.states[id] == held && branch.From(ctx).Attempt == 1 {
				r.free, r.held = r.free-n, r.held+n
				return nil
			}
			return r.takes(ctx, id, n)
		}
	}, []string{"try not idempotent:b"}, "the try of b arrived twice"},
	"try takes again behind its confirmation": {func(r *room, _ *Scene) {
		r.confirm = func(ctx context.Context, id string, n int) error {
			if r.states[id] == "" {
				return nil
			}
			defer delete(r.states, id)
			return r.sells(ctx, id, n)
		}
	}, []string{"try not idempotent:b"}, "b was confirmed, and then its try arrived again"},
	"try only at its first attempt": {func(r *room, _ *Scene) {
		r.try = func(ctx context.Context, id string, n int) error {
			if branch.From(ctx).Attempt > 1 {
				return nil
			}
			return r.takes(ctx, id, n)
		}
		r.confirm = func(ctx context.Context, id string, n int) error {
			if r.states[id] == "" {
				return nil
			}
			return r.sells(ctx, id, n)
		}
	}, []string{"outcome differs:b"}, "the first try of b was lost"},
	"try sells": {func(r *room, _ *Scene) {
		r.try = func(ctx context.Context, id string, n int) error {
			was := r.states[id]
			err := r.takes(ctx, id, n)
			if err == nil && was == "" {
				r.held, r.sold = r.held-n, r.sold+n
			}
			return err
		}
		r.confirm = func(_ context.Context, id string, _ int) error { r.states[id] = confirmed; return nil }
		r.cancel = func(_ context.Context, id string, n int, _ *string) error {
			if r.states[id] == held {
				r.sold, r.free = r.sold-n, r.free+n
			}
			r.states[id] = cancelled
			return nil
		}
	}, []string{"try is visible:b"}, "the try changed what others see before a decision - 0 + 2"},
	"late try, of a branch that was cancelled empty": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] == "" {
				return nil
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"late try accepted:b"}, "the try of b was lost, its outcome was unknown, and then another branch was refused, and it was cancelled, and then its try arrived for the first time"},
	"late try, once more": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] != held {
				return nil
			}
			defer delete(r.states, id)
			return r.frees(ctx, id, n, h)
		}
	}, []string{"late try accepted:b"}, "and then its try arrived again"},
	"confirm sells at each call": {func(r *room, _ *Scene) {
		r.confirm = func(_ context.Context, id string, n int) error {
			r.held, r.sold, r.states[id] = r.held-n, r.sold+n, confirmed
			return nil
		}
	}, []string{"confirm not idempotent:b"}, "+ room sold: 4"},
	"confirm refuses its repetition": {func(r *room, _ *Scene) {
		r.confirm = func(ctx context.Context, id string, n int) error {
			if r.states[id] == confirmed {
				return branch.Fail(errBusy)
			}
			return r.sells(ctx, id, n)
		}
	}, []string{"confirm not idempotent:b"}, "its repetition was refused: busy"},
	"confirm only at its first attempt": {func(r *room, _ *Scene) {
		r.confirm = func(ctx context.Context, id string, n int) error {
			if branch.From(ctx).Attempt > 1 {
				return nil
			}
			return r.sells(ctx, id, n)
		}
	}, []string{"outcome differs:b"}, "the first confirmation of b was lost"},
	"confirm refuses": {func(r *room, _ *Scene) {
		r.confirm = func(context.Context, string, int) error { return branch.Fail(errBusy) }
	}, []string{"confirm refuses:b"}, "there is no fault then: the confirm is refused"},
	"try only looks, and confirm refuses if there are too few": { // only another transaction shows it
		func(r *room, _ *Scene) {
			r.free = wanted
			r.try = func(_ context.Context, id string, n int) error {
				if r.states[id] == "" && r.free < n || r.states[id] == cancelled {
					return branch.Fail(errBusy)
				}
				r.states[id] = held
				return nil
			}
			r.confirm = func(_ context.Context, id string, n int) error {
				if r.states[id] == held && r.free < n {
					return branch.Fail(errBusy)
				} else if r.states[id] == held {
					r.free, r.sold, r.states[id] = r.free-n, r.sold+n, confirmed
				}
				return nil
			}
			r.cancel = func(_ context.Context, id string, _ int, _ *string) error { r.states[id] = cancelled; return nil }
		}, []string{"confirm refuses:b"}, "another process ran the same transaction before the confirmations"},
	"more is held than there is": { // the same
		func(r *room, _ *Scene) {
			r.free = wanted
			r.try = func(ctx context.Context, id string, n int) error {
				if r.states[id] == "" {
					r.free, r.held, r.states[id] = r.free-n, r.held+n, held
				}
				return r.takes(ctx, id, 0)
			}
		}, []string{"invariant broken:b"}, "after the try of b: -2 are free"},
	"cancel leaves a part": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error { return r.frees(ctx, id, n-1, h) }
	}, []string{"cancel incomplete:b"}, "b was tried, and then another branch was refused, and it was cancelled then: the transaction was cancelled, and an effect of the branch remains"},
	"cancel refuses": {func(r *room, _ *Scene) {
		r.cancel = func(context.Context, string, int, *string) error { return branch.Fail(errBusy) }
	}, []string{"cancel incomplete:b"}, "the cancel is refused, which makes the transaction a dead letter: busy"},
	"cancel never succeeds": {func(r *room, _ *Scene) {
		r.cancel = func(context.Context, string, int, *string) error { return errBusy }
	}, []string{"never ends:b"}, "the transaction is CANCELLING, and the last call said: busy"},
	"cancel frees at each call": {func(r *room, _ *Scene) {
		r.cancel = func(_ context.Context, id string, n int, _ *string) error {
			if r.states[id] == held || r.states[id] == "freed" {
				r.held, r.free, r.states[id] = r.held-n, r.free+n, "freed"
			} else {
				r.states[id] = cancelled
			}
			return nil
		}
		r.try = func(ctx context.Context, id string, n int) error {
			if r.states[id] == "freed" {
				return branch.Fail(errBusy)
			}
			return r.takes(ctx, id, n)
		}
	}, []string{"cancel not idempotent:b"}, "the answer of its cancellation was lost, and the cancellation was repeated"},
	"cancel twice at its first attempt": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] == cancelled && h != nil && branch.From(ctx).Attempt == 1 {
				r.free += n
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"cancel not idempotent:b"}, "its cancellation arrived twice"},
	"cancel refuses its repetition": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] == cancelled {
				return branch.Fail(errBusy)
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"cancel not idempotent:b"}, "the first cancel was done, and its repetition was refused: busy"},
	"cancel only at its first attempt": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if branch.From(ctx).Attempt > 1 {
				return nil
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"cancel incomplete:b"}, "its first cancellation was lost"},
	"cancel by the hold": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if h == nil {
				r.states[id] = cancelled
				return nil
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"cancel needs the hold:b"}, "b was tried, its answer was lost permanently"},
	"cancel by the hold, given up at once": { // its try has no finding
		func(r *room, s *Scene) {
			s.Options = &tcc.Options{Retry: tcc.Policy{Attempts: 1}}
			r.cancel = func(ctx context.Context, id string, n int, h *string) error {
				if h == nil {
					r.states[id] = cancelled
					return nil
				}
				return r.frees(ctx, id, n, h)
			}
		}, []string{"cancel needs the hold:b"}, "b was tried, its answer was lost permanently"},
	"cancel panics without the hold": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error { _ = *h; return r.frees(ctx, id, n, h) }
	}, []string{"cancel needs the hold:b", "empty cancel not harmless:b"}, "nil pointer"},
	"empty cancel gives back": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] == "" {
				r.free += n
			}
			return r.frees(ctx, id, n, h)
		}
	}, []string{"empty cancel not harmless:b"}, "the try of b was lost, its outcome was unknown"},
	"empty cancel refuses": {func(r *room, _ *Scene) {
		r.cancel = func(ctx context.Context, id string, n int, h *string) error {
			if r.states[id] == "" {
				r.states[id] = "empty"
			}
			if r.states[id] == "empty" {
				return branch.Fail(errBusy)
			}
			return r.frees(ctx, id, n, h)
		}
		r.try = func(ctx context.Context, id string, n int) error {
			if r.states[id] == "empty" {
				return branch.Fail(errBusy)
			}
			return r.takes(ctx, id, n)
		}
	}, []string{"empty cancel not harmless:b"}, "the cancel is refused"},
	"nobody sweeps": {func(r *room, _ *Scene) {
		r.sweep = func(context.Context, tcc.Ask) error { return nil }
	}, []string{"hold never expires:"}, "and another one continued, the transaction was not run again, and the holds expired then: the"},
	"sweep forgets to free": {func(r *room, _ *Scene) {
		r.sweep = func(ctx context.Context, ask tcc.Ask) error {
			for _, o := range r.overdue() {
				if _, err := ask(ctx, o[:len(o)-2], "b"); err != nil {
					return err
				}
			}
			return nil
		}
	}, []string{"hold never expires:"}, "the world has changed"},
	"sweep by the clock": {func(r *room, _ *Scene) {
		r.sweep = func(ctx context.Context, _ tcc.Ask) error {
			for _, o := range r.overdue() {
				_ = r.locked(func() error { return r.frees(ctx, o, wanted, nil) })
			}
			return nil
		}
	}, []string{"freed unasked:"}, "a sweep freed a hold without a decision to cancel"},
	"sweep frees if nobody answers": {func(r *room, _ *Scene) {
		r.sweep = func(ctx context.Context, ask tcc.Ask) error {
			return r.sweeps(ctx, func(ctx context.Context, id, b string) (tcc.Decision, error) {
				if d, err := ask(ctx, id, b); err == nil {
					return d, nil
				}
				return tcc.Cancel, nil
			})
		}
	}, []string{"freed unasked:"}, "the holds expired before the confirmations arrived"},
	"sweep frees what is to be confirmed": {func(r *room, _ *Scene) {
		r.sweep = func(ctx context.Context, ask tcc.Ask) error {
			return r.sweeps(ctx, func(ctx context.Context, id, b string) (tcc.Decision, error) {
				_, err := ask(ctx, id, b)
				return tcc.Cancel, err
			})
		}
	}, []string{"freed unasked:"}, "the decision was to confirm"},
	"a resource too many": {func(_ *room, s *Scene) {
		Define(s, "c", functions{})
	}, []string{"never reached:c"}, "no branch of the transaction is one of this resource"},
	"tells a success whatever comes": {func(_ *room, s *Scene) {
		run := s.Run
		s.Run = func(ctx context.Context, m *tcc.Engine, id string) error { _ = run(ctx, m, id); return nil }
	}, []string{"outcome differs:"}, "Run returned a decision to confirm, and the decision is to cancel"},
	"for ever at work": {func(r *room, _ *Scene) {
		r.confirm = func(context.Context, string, int) error { return branch.InProgress(time.Minute) }
	}, []string{"never ends:b"}, "the transaction is CONFIRMING"},
	"confirm once for each engine": { // only a crash shows it
		func(r *room, _ *Scene) {
			seen := map[string]bool{}
			r.confirm = func(ctx context.Context, id string, n int) error {
				if epoch := fmt.Sprint(branch.From(ctx).Epoch); r.states[id] == confirmed && !seen[epoch] {
					r.held, r.sold, seen[epoch] = r.held-n, r.sold+n, true
				} else {
					seen[epoch] = true
				}
				return r.sells(ctx, id, n)
			}
		}, []string{"confirm not idempotent:b"}, "there is no other fault, the engine crashed before the answer of the confirm of b, and another one continued"},
	"try once for each Run": { // the same
		func(r *room, _ *Scene) {
			var begun time.Time
			r.try = func(ctx context.Context, id string, n int) error {
				if at := branch.From(ctx).Begun; !at.Equal(begun) && r.states[id] == held {
					begun = at
					r.free, r.held = r.free-n, r.held+n
				} else {
					begun = at
				}
				return r.takes(ctx, id, n)
			}
		}, []string{"try not idempotent:b"}, "the engine crashed before the answer of the try of b"},
	"cancel once for each engine": { // the same
		func(r *room, _ *Scene) {
			seen, was := map[string]bool{}, false
			r.cancel = func(ctx context.Context, id string, n int, h *string) error {
				was = was || r.states[id] == held
				if epoch := fmt.Sprint(branch.From(ctx).Epoch); was && r.states[id] == cancelled && !seen[epoch] {
					r.free, seen[epoch] = r.free+n, true
				} else {
					seen[epoch] = true
				}
				return r.frees(ctx, id, n, h)
			}
		}, []string{"cancel not idempotent:b"}, "the engine crashed before the answer of the cancel of b"},
	"cancel to an old value": { // only two that are cancelled at the same time show it
		func(r *room, s *Scene) {
			restoring := func(wait time.Duration) tcc.Resource[int, string] {
				was := map[string]int{}
				return functions{func(ctx context.Context, n int, _ time.Time) (string, error) {
					time.Sleep(wait)
					return "", r.locked(func() error {
						if r.states[key(ctx)] == "" {
							was[key(ctx)] = r.free
						}
						return r.takes(ctx, key(ctx), n)
					})
				}, func(ctx context.Context, n int) error {
					return r.locked(func() error { return r.sells(ctx, key(ctx), n) })
				}, func(ctx context.Context, n int) error {
					time.Sleep(wait)
					return r.locked(func() error {
						if r.states[key(ctx)] == held {
							defer func() { r.free = was[key(ctx)] }()
						}
						return r.frees(ctx, key(ctx), n, nil)
					})
				}}
			}
			x, y := Define(s, "x", restoring(time.Second)), Define(s, "y", restoring(2*time.Second))
			z := Define(s, "z", functions{})
			s.stage.names, s.stage.defined = s.stage.names[2:], s.stage.defined[2:]
			s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
				_, err := m.Run(ctx, "order", id, x.Try(1), y.Try(1), z.Try(1))
				return err
			}
		}, []string{"cancel incomplete:"}, "was refused"},
}

// TestUnsoundTransactionsAreConvicted: each has exactly the finding of its mistake, for the branch
// with the mistake.
func TestUnsoundTransactionsAreConvicted(t *testing.T) {
	kinds := map[string]bool{}
	for name, c := range unsound {
		for _, want := range c.want {
			kind, _, _ := strings.Cut(want, ":")
			kinds[kind] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, runs := explored(t, func() Scene { return orders(c.wrong) })
			var got []string
			for _, f := range found {
				got = append(got, fmt.Sprintf("%s:%s", f.Kind, f.Branch))
				t.Log(f)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("found %q in %d runs, want %q", got, runs, c.want)
			}
			if text := strings.Join(strings.Fields(found[0].String()), " "); !strings.Contains(text, c.says) {
				t.Errorf("it does not say %q", c.says)
			}
		})
	}
	for _, k := range kindsOfFindings {
		if !kinds[string(k)] {
			t.Errorf("nothing shows %s", k)
		}
	}
}

// TestOneBranchIsGivenUp: if no other can be refused, the caller of Run ends it.
func TestOneBranchIsGivenUp(t *testing.T) {
	t.Parallel()
	found, _ := explored(t, func() Scene {
		r := newRoom(9)
		r.cancel = func(ctx context.Context, id string, n int, h *string) error { return r.frees(ctx, id, n-1, h) }
		s := alone(r)
		s.Snapshot = func() any { return r.snapshot() }
		return s
	})
	if len(found) != 1 || found[0].Kind != CancelIncomplete || found[0].Scenario != "a was tried, and then the caller gave up, and it was cancelled" {
		t.Errorf("%v", found)
	}
}

// TestRunThatDoesNotEnd: a Run that does not end with its context cannot be cancelled, and that is
// reported.
func TestRunThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	found, _ := explored(t, func() Scene {
		s := alone(newRoom(9))
		run := s.Run
		s.Run = func(ctx context.Context, m *tcc.Engine, id string) error {
			return run(context.WithoutCancel(ctx), m, id)
		}
		return s
	})
	if len(found) != 1 || found[0].Kind != NeverReached || found[0].Branch != "a" || !strings.Contains(found[0].Problem, "after its context had ended") {
		t.Errorf("%v", found)
	}
}

// kindsOfFindings has all kinds.
var kindsOfFindings = []Kind{TryNotIdempotent, TryVisible, LateTryAccepted, ConfirmNotIdempotent, ConfirmRefuses, CancelIncomplete, CancelNotIdempotent,
	CancelNeedsHold, EmptyCancel, HoldNeverExpires, FreedUnasked, InvariantBroken, OutcomeDiffers, NeverReached, NeverEnds}

// orders is a scene with a shelf and a room with a mistake.
func orders(wrong func(r *room, s *Scene)) Scene {
	w, r := &World{}, newRoom(10)
	w.Set("a", "10")
	s := Scene{Snapshot: func() any { return r.snapshot() + w.Snapshot().(string) }}
	s.Visible = func() any { r.mu.Lock(); defer r.mu.Unlock(); return r.sold }
	s.Invariant = func() error {
		return r.locked(func() error {
			if r.free < 0 {
				return fmt.Errorf("%d are free", r.free)
			}
			return nil
		})
	}
	a := shelf{w, "a"}
	s.Sweep = func(ctx context.Context, ask tcc.Ask) error {
		return errors.Join(r.sweep(ctx, ask), w.Sweep(ctx, ask, func(ctx context.Context) error { return a.Cancel(ctx, wanted, nil) }))
	}
	each(&s, map[string]tcc.Resource[int, string]{"a": a, "b": r})
	wrong(r, &s)
	return s
}
