package saga

import (
	"context"
	"encoding/json"
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
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestRecords: the records of a saga with a pivot, and of one that is undone; the undos are
// in reverse order, and a refused step has none.
func TestRecords(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		good := Define("good", g.undoable("a"), g.act("b").Pivot(), g.act("c"))
		bad := Define("bad", g.undoable("a"), g.act("b").Uncompensable(), g.undoable("c"), g.undoable("d", Fail(errSeat)), g.act("e").Pivot())
		r := serve(t, nil, 1, nil, good, bad)
		o, err := good.Do(t.Context(), r.engine, "1", "in")
		ok(t, err)
		if text, err := g.act("b").OutputOf(o); text != "in>b" || err != nil {
			t.Errorf("output %q, %v", text, err)
		}
		same(t, "records", r.records(t, "1"), "begin:", "sent:a", "done:a", "sent:b", "done:b", "decide:commit", "sent:c", "done:c", "end:")
		o, err = bad.Do(t.Context(), r.engine, "2", "in")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		if o.State != Compensated || o.Reason != "d: no seat" {
			t.Errorf("%+v", o)
		}
		same(t, "records", r.records(t, "2"), "begin:", "sent:a", "sent:b", "sent:c", "sent:d", "done:a", "done:b", "done:c",
			"failed:d", "decide:abort", "undone:c", "undone:a", "end:")
		same(t, "effects", g.did(), "1/a/do", "1/b/do", "1/c/do", "2/a/do", "2/b/do", "2/c/do", "2/c/undo", "2/a/undo")
		txntest.Equal(t, "appends", r.store.Appends(), 3+3)
	})
}

// TestUnknownIsUndone: a step with an unknown outcome is undone first, and its undo gets no
// output. So is one that was finally refused, since an earlier call may still be in transit.
func TestUnknownIsUndone(t *testing.T) {
	for name, fails := range map[string][]error{"never known": always(errNetwork), "refused later": {errNetwork, Fail(errSeat)},
		"refused after it was at work": {InProgress(time.Second), Fail(errSeat)}, "refused after it was at work for long": {InProgress(time.Hour), Fail(errSeat)}} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", g.undoable("a"), g.undoable("b", fails...), g.act("c").Pivot())
			r := serve(t, nil, 1, nil, d)
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			same(t, "effects", g.did(), "1/a/do", "1/b/undo?", "1/a/undo")
		})
	}
}

// TestRefusedIsNotUndone: neither is a step that was refused, nor one that could
// not be tried; and the first step's saga ends at once.
func TestRefusedIsNotUndone(t *testing.T) {
	for name, fails := range map[string][]error{"refused": {Fail(errSeat)}, "busy for ever": always(Retry(errNetwork)), "busy, then refused": {Retry(errNetwork), Fail(errSeat)}} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			d := Define("order", g.undoable("a", fails...), g.undoable("b"), g.act("c").Pivot())
			alone := g.undoable("alone", fails...)
			f := DefineFunc("function", func(s *Run, in string) error { _, err := alone.Do(s, in); return err }, alone)
			r := serve(t, nil, 1, nil, d, f)
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			_, err = f.Do(t.Context(), r.engine, "2", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			same(t, "effects", g.did())
			records := slices.DeleteFunc(r.records(t, "1"), func(kind string) bool { return kind == "tried:a" })
			same(t, "records", records, "begin:", "sent:a", "sent:b", "failed:a", "decide:abort", "never:b", "end:")
		})
	}
}

// TestPivot: it is repeated while its outcome is unknown, beyond Attempts and the saga's
// timeout; a refusal aborts; and steps after it are repeated forever, even after a refusal.
func TestPivot(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		stubborn := Define("stubborn", g.undoable("a"), g.act("b", repeat(30, errNetwork)...).Pivot(), g.act("c", repeat(30, Fail(errSeat))...)).Timeout(time.Second)
		refused := Define("refused", g.undoable("a"), g.act("b", errNetwork, Fail(errSeat)).Pivot())
		busy := Define("busy", g.undoable("a"), g.act("b", always(Retry(errNetwork))...).Pivot())
		r := serve(t, nil, 1, nil, stubborn, refused, busy)
		_, err := stubborn.Do(t.Context(), r.engine, "1", "in")
		ok(t, err)
		for id, d := range map[string]Definition[string]{"2": refused, "3": busy} {
			_, err = d.Do(t.Context(), r.engine, id, "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			if _, effects := g.count(id + "/a/undo"); effects != 1 {
				t.Errorf("%s: %v", id, g.did())
			}
		}
	})
}

// TestTimeout: a saga is aborted at its timeout, also during a step or a wait, but not once its pivot
// is sent; an undo has its own timeout.
func TestTimeout(t *testing.T) {
	slow := func(g *target, name string, d time.Duration) Action[string, string] {
		return Step(name, func(ctx context.Context, _ string) (string, error) {
			select {
			case <-time.After(d):
				return "", g.take(From(ctx).Key())
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}).Undo("un"+name, func(ctx context.Context, _ string, out *string) error {
			time.Sleep(5 * time.Second)
			return errors.Join(g.take(From(ctx).Key()), ctx.Err())
		})
	}
	for name, c := range map[string]struct {
		steps func(g *target) []Stage[string]
		want  []string
		took  time.Duration
	}{
		"in a step": {func(g *target) []Stage[string] {
			return []Stage[string]{slow(g, "a", time.Second), slow(g, "b", time.Hour).Timeout(time.Hour)}
		}, []string{"1/a/do", "1/b/undo", "1/a/undo"}, 10 * time.Second},
		"in a step with heartbeats": {func(g *target) []Stage[string] {
			return []Stage[string]{slow(g, "a", time.Second), g.beat("b", 20*time.Second)}
		}, []string{"1/a/do", "1/b/undo", "1/a/undo"}, 11 * time.Second},
		"in a wait": {func(g *target) []Stage[string] {
			return []Stage[string]{slow(g, "a", time.Second), g.undoable("b", InProgress(time.Hour))}
		}, []string{"1/a/do", "1/b/undo?", "1/a/undo"}, 10 * time.Second},
		"after a step that took no notice": {func(g *target) []Stage[string] {
			deaf := Step("a", func(ctx context.Context, _ string) (string, error) {
				time.Sleep(11 * time.Second)
				return "", g.take(From(ctx).Key())
			}).Undo("una", func(ctx context.Context, _ string, out *string) error {
				if out == nil {
					t.Error("the output is lost")
				}
				return g.take(From(ctx).Key())
			})
			return []Stage[string]{deaf, g.act("b").Pivot()}
		}, []string{"1/a/do", "1/a/undo"}, 11 * time.Second},
		"just in time": {func(g *target) []Stage[string] {
			return []Stage[string]{slow(g, "a", 10*time.Second-time.Nanosecond), g.act("b").Pivot()}
		}, []string{"1/a/do", "1/b/do"}, 10*time.Second - time.Nanosecond},
		"after the pivot": {func(g *target) []Stage[string] {
			return []Stage[string]{slow(g, "a", time.Second), g.act("b", InProgress(time.Minute)).Pivot(), g.act("c", InProgress(time.Minute))}
		}, []string{"1/a/do", "1/b/do", "1/c/do"}, 121 * time.Second},
	} {
		runBubble(t, name, func(t *testing.T) {
			time.Sleep(time.Until(time.Now().Truncate(time.Millisecond).Add(time.Millisecond)))
			g := &target{}
			d := Define("order", c.steps(g)...).Timeout(10 * time.Second)
			r := serve(t, nil, 1, nil, d)
			from := time.Now()
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			same(t, fmt.Sprint("effects, ", err), g.did(), c.want...)
			if took := time.Since(from); took < c.took || took > c.took+15*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestStartTwice: a second start attaches to the first saga and returns its result; with
// another input, or as another saga, it is refused and changes nothing.
func TestStartTwice(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d, other := Define("order", g.undoable("a"), g.act("b").Pivot()), Define("other", g.undoable("a"))
		r := serve(t, nil, 1, nil, d, other)
		var work sync.WaitGroup
		for range 20 {
			work.Go(func() {
				o, err := d.Do(t.Context(), r.engine, "1", "in")
				if text, _ := g.act("b").OutputOf(o); err != nil || text != "in>b" {
					t.Errorf("%+v, %v", o, err)
				}
			})
		}
		work.Wait()
		ok(t, txntest.Second(d.Do(t.Context(), r.engine, "1", "in")))
		if calls, _ := g.count("1/a/do"); calls != 1 {
			t.Errorf("%d calls", calls)
		}
		wantKind(t, d.Start(t.Context(), r.engine, "1", "else"), interlock.Bug, ErrMismatch)
		wantKind(t, other.Start(t.Context(), r.engine, "1", "in"), interlock.Bug, ErrMismatch)
		_, err := d.Do(t.Context(), r.engine, "1", "else")
		wantKind(t, err, interlock.Bug, ErrMismatch)
		if n := len(r.records(t, "1")); n != 7 {
			t.Errorf("%v", r.records(t, "1"))
		}
	})
}

// TestCallerGone: a saga continues to its end, and is undone, although its caller no
// longer waits.
func TestCallerGone(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.undoable("b", InProgress(time.Minute), Fail(errSeat)))
		r := serve(t, nil, 1, nil, d)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.Do(ctx, r.engine, "1", "in")
		wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded)
		o, err := r.engine.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		same(t, fmt.Sprint(o.State), g.did(), "1/a/do", "1/b/undo?", "1/a/undo")
	})
}

// TestDeadLetter: an undo that always fails is given up after Undos attempts, the others
// continue, and the saga stays: it is reported, is due again, is not forgotten, and no
// later engine ends it.
func TestDeadLetter(t *testing.T) {
	for name, c := range map[string]struct {
		fails error
		calls int
	}{"bounded": {errNetwork, 3}, "refused": {Fail(errSeat), 1}} {
		runOnTarget(t, name, func(t *testing.T, g *target) {
			calls := 0
			d := Define("order", g.undoable("a"), g.act("b").Retry(Policy{Undos: 3}).Undo("unb", func(context.Context, string, *string) error {
				calls++
				return c.fails
			}), g.undoable("c"), g.undoable("d", Fail(errSeat)))
			var dead []observe.SagaDead
			ended := 0
			o := &settings{saga: Options{Remind: time.Hour, Hooks: &observe.Saga{Dead: func(e observe.SagaDead) { dead = append(dead, e) }, Ended: func(observe.SagaEnded) { ended++ }}}}
			r := serve(t, nil, 1, o, d)
			outcome, err := d.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Uncertain, ErrDeadLetter)
			same(t, "effects", g.did(), "1/a/do", "1/b/do", "1/c/do", "1/c/undo", "1/a/undo")
			synctest.Wait()
			if calls != c.calls || len(outcome.Dead) != 1 || outcome.Dead[0].Step != "b" || !strings.Contains(err.Error(), c.fails.Error()) {
				t.Errorf("%d calls; %v", calls, err)
			}
			time.Sleep(5*time.Hour + 30*time.Minute)
			synctest.Wait()
			if len(dead) != 6 || ended != 1 || len(dead[0].Steps) != 1 || dead[0].Steps[0] != "b" {
				t.Errorf("reported %d times, %d ends: %+v", len(dead), ended, dead)
			}
			r.quit()
			next := serve(t, r.store, 2, nil, d)
			time.Sleep(time.Minute)
			synctest.Wait()
			n, err := next.coordinator.Journal().Forget(t.Context(), time.Now().Add(time.Hour), 10)
			if again, lookErr := next.engine.Look(t.Context(), "1"); n != 0 || err != nil || lookErr != nil || again.State != DeadLetter || calls != c.calls {
				t.Errorf("later: %v, %v, %+v, %v", n, err, again, lookErr)
			}
		})
	}
}

// TestAchievedWhileStopping: the success of an action while the engine stops is written,
// and its failure does not count.
func TestAchievedWhileStopping(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", Step("a", func(ctx context.Context, fails string) (int, error) {
			if <-ctx.Done(); fails != "" {
				return 0, context.Cause(ctx)
			}
			return 1, nil
		}).Undo("una", func(context.Context, string, *int) error { return nil }).Retry(Policy{Attempts: 1}), g.act("b").Pivot())
		r := serve(t, nil, 1, nil, d)
		ok(t, errors.Join(d.Start(t.Context(), r.engine, "1", ""), d.Start(t.Context(), r.engine, "2", "fails")))
		synctest.Wait()
		r.quit()
		same(t, "records", r.records(t, "1"), "begin:", "sent:a", "done:a")
		same(t, "records", r.records(t, "2"), "begin:", "sent:a")
	})
}

// TestLostAnswerOfBegin: a start whose answer is lost is found to have begun.
func TestLostAnswerOfBegin(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a", Fail(errSeat)))
		store := &watched{Journal: memory.NewJournal(), Points: crashAt(2)} // after the begin's append
		r := idle(t, store, nil, d)
		wantKind(t, d.Start(t.Context(), r.engine, "1", "in"), interlock.Uncertain, nil)
		store.Points = nil
		ok(t, d.Start(t.Context(), r.engine, "1", "in"))
		r.serve(t, 1)
		_, err := r.engine.Wait(t.Context(), "1")
		wantKind(t, err, interlock.Definite, ErrCompensated)
		// Another engine may have called the step before.
		same(t, "effects", g.did(), "1/a/undo?")
	})
}

// TestBegunAlone: a saga begun without its definition, by its name and JSON, equals the one
// that Start would begin, and continues in the same way.
func TestBegunAlone(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		d := Define("order", g.undoable("a"), g.act("p").Pivot(), g.act("z"))
		r := serve(t, nil, 1, nil, d)
		ctx, j := t.Context(), r.coordinator.Journal()
		ok(t, Begin(ctx, j, "order", "1", json.RawMessage(` "in" `)))
		same(t, "records", r.records(t, "1"), "begin:")
		ok(t, txntest.Second(d.Do(ctx, r.engine, "1", "in")))
		ok(t, Begin(ctx, j, "order", "1", json.RawMessage(`"in"`)))
		ok(t, r.engine.Start(ctx, "order", "2", json.RawMessage(`"in"`)))
		ok(t, d.Start(ctx, r.engine, "2", "in"))
		ok(t, txntest.Second(r.engine.Wait(ctx, "2")))
		same(t, "effects", g.did(), "1/a/do", "1/p/do", "1/z/do", "2/a/do", "2/p/do", "2/z/do")
		nested := json.RawMessage(strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)) // encoding/json reads no more
		for _, err := range []error{
			Begin(ctx, j, "order", "1", json.RawMessage(`"else"`)), Begin(ctx, j, "bill", "1", json.RawMessage(`"in"`)),
			Begin(ctx, j, "", "3", nil), Begin(ctx, j, strings.Repeat("n", 201), "3", nil), Begin(ctx, j, "order", "3", json.RawMessage(`{`)),
			Begin(ctx, j, "order", strings.Repeat("n", driver.MaxTransaction+1), nil), Begin(ctx, j, "order", "3", nested), r.engine.Start(ctx, "bill", "3", nil), r.engine.Start(ctx, "order", "3", json.RawMessage(`{`)),
		} {
			wantKind(t, err, interlock.Bug, nil)
		}
		if err := Begin(ctx, j, "order", "3", json.RawMessage(`{`)); err == nil || strings.Contains(err.Error(), "name") || !strings.Contains(err.Error(), "input") {
			t.Errorf("the input is wrong: %v", err)
		}
		if err := Begin(ctx, j, "", "3", nil); err == nil || !strings.Contains(err.Error(), "name has 0 bytes") {
			t.Errorf("the name is wrong: %v", err)
		}
		_, err := r.engine.Look(ctx, "3")
		wantKind(t, err, interlock.Definite, ErrNone)
	})
}

// TestManySteps: records for more than one append are consistent in parts: if an engine
// crashes between them, the saga is undone completely, in order.
func TestManySteps(t *testing.T) {
	for point := range 12 {
		bubble(t, func(t *testing.T) {
			define := func(g *target) Definition[string] {
				var group []Stage[string]
				for i := range 70 {
					group = append(group, g.undoable(fmt.Sprintf("s%02d", i)))
				}
				return Define("order", Parallel(group[:40]...), Parallel(group[40:]...), g.undoable("no", always(Fail(errSeat))...))
			}
			g, store := &target{}, memory.NewJournal()
			for epoch, at := range []*points{crashAt(point), nil} {
				r := idle(t, &watched{Journal: store, Points: at}, nil, define(g))
				_ = r.engine.Start(t.Context(), "order", "1", json.RawMessage(`"in"`))
				r.serve(t, int64(epoch)+1)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r.quit()
			}
			undoneAfter(t, g.did())
			o, err := idle(t, &watched{Journal: store}, nil, define(g)).engine.Look(context.Background(), "1")
			if ok(t, err); o.State != Compensated {
				t.Errorf("crashed at %d: %+v", point, o)
			}
			for i, e := range g.did() {
				if late := strings.HasPrefix(e, "1/s0") && strings.Contains(e, "/undo"); late && strings.Contains(strings.Join(g.did()[i:], " "), "1/s69/undo") {
					t.Errorf("crashed at %d: the first stage is undone before the second: %v", point, g.did())
					break
				}
			}
		})
	}
}

// TestEditCrossesACall: a step's input is edited during a call with the former input, by this or
// a former owner. The edit is reported if that call was done.
func TestEditCrossesACall(t *testing.T) {
	for name, heir := range map[string]bool{"of this owner": false, "of a former owner": true} {
		runBubble(t, name, func(t *testing.T) {
			gate, block := make(chan struct{}), make(chan struct{})
			var inputs []string
			var crossed []observe.SagaCrossed
			z := Step("z", func(_ context.Context, in string) (string, error) {
				inputs = append(inputs, in)
				switch len(inputs) {
				case 1:
					return "", errNetwork // so that the journal has the step
				case 2:
					<-gate
				case 3:
					<-block
				}
				return in, nil
			}).Retry(Policy{First: 2 * time.Second, Max: 2 * time.Second})
			d := Define("order", (&target{}).act("p").Pivot(), z)
			o := &settings{saga: Options{Hooks: &observe.Saga{Crossed: func(e observe.SagaCrossed) { crossed = append(crossed, e) }}}}
			r := serveBegun(t, o, d, "1", "old")
			time.Sleep(5 * time.Second)
			synctest.Wait()
			ok(t, NewOperator(r.coordinator.Journal()).Edit(t.Context(), "1", "z", json.RawMessage(`"new"`), By{Actor: "ann", Reason: "a typing error"}))
			last := r
			if heir {
				last = serve(t, r.store, 2, o, d)
			} else {
				r.coordinator.Nudge("1")
			}
			synctest.Wait()
			close(gate)
			synctest.Wait()
			if len(crossed) != 1 || crossed[0].Step != "z" || crossed[0].Before != `"old"` || crossed[0].After != `"new"` || crossed[0].Err != nil {
				t.Errorf("reported %+v", crossed)
			}
			moments, err := Replay(last.entries(t, "1"))
			ok(t, err)
			if steps := moments[len(moments)-1].Steps; !strings.Contains(steps[1].Err, `a call with the input before its edit, "old", was done`) {
				t.Errorf("%+v", steps)
			}
			close(block)
			if _, err := last.engine.Wait(t.Context(), "1"); err != nil || inputs[len(inputs)-1] != "new" {
				t.Errorf("%v, %v", inputs, err)
			}
		})
	}
}

// TestEditComesTooLate: a call with the input before an edit took effect, and its answer
// was lost with its owner. The participant's barrier reports that to the next owner: the
// step is done with that input, and the edit is reported as too late.
func TestEditComesTooLate(t *testing.T) {
	for name, edits := range map[string][]string{"once": {`"new"`}, "twice": {`"newer"`, `"new"`}} {
		runBubble(t, name, func(t *testing.T) {
			var did []string
			lost := errNetwork
			participant := barrier.Keyed[memory.Business]{Barrier: memory.NewBarrier(), Business: func(_ context.Context, input []byte) (memory.Business, error) {
				return func([]byte, bool) ([]byte, error) {
					did = append(did, string(input))
					return input, nil
				}, nil
			}}
			z := Step("z", func(ctx context.Context, in string) (string, error) {
				out, err := participant.Call(ctx, []byte(in))
				if err == nil && lost != nil {
					return "", lost
				}
				return string(out), err
			}).Retry(Policy{First: time.Hour, Max: time.Hour})
			d := Define("order", (&target{}).act("p").Pivot(), z)
			var crossed []observe.SagaCrossed
			o := &settings{saga: Options{Hooks: &observe.Saga{Crossed: func(e observe.SagaCrossed) { crossed = append(crossed, e) }}}}
			r := serveBegun(t, o, d, "1", "old")
			synctest.Wait()
			r.quit()
			lost = nil
			for _, edit := range edits {
				ok(t, NewOperator(r.coordinator.Journal()).Edit(t.Context(), "1", "z", json.RawMessage(edit), By{Actor: "ann", Reason: "a typing error"}))
			}
			heir := serve(t, r.store, 2, o, d)
			got, err := heir.engine.Wait(t.Context(), "1")
			ok(t, err)
			out, _ := got.Outputs.All()["z"]
			if !slices.Equal(did, []string{"old"}) || string(out) != `"old"` {
				t.Errorf("the participant did %q, and the output is %s", did, out)
			}
			want := observe.SagaCrossed{Saga: "1", Type: "order", Step: "z", Final: true, Before: `"old"`, After: `"new"`}
			if len(crossed) != 1 || crossed[0] != want {
				t.Errorf("reported %+v", crossed)
			}
			const late = `the edit of its input came too late: it was done with the input before, "old", and not with "new"`
			if len(got.Crossed) != 1 || got.Crossed[0] != (StepError{Step: "z", Err: late}) {
				t.Errorf("%+v", got.Crossed)
			}
			moments, err := Replay(heir.entries(t, "1"))
			ok(t, err)
			if step := moments[len(moments)-1].Steps[1]; step.Err != late || step.Input != nil {
				t.Errorf("%+v", step)
			}
		})
	}
}

// TestOtherInputIsNotGuessed: without an edit, and if the participant knows none of the
// inputs, its answer is a failure like any other.
func TestOtherInputIsNotGuessed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var inputs []string
		z := Step("z", func(_ context.Context, in string) (string, error) {
			inputs = append(inputs, in)
			if len(inputs) < 4 {
				return "", branch.ErrOtherInput
			}
			return in, nil
		}).Retry(Policy{First: 2 * time.Second, Max: 2 * time.Second})
		d := Define("order", (&target{}).act("p").Pivot(), z)
		r := serveBegun(t, nil, d, "1", "old")
		synctest.Wait()
		ok(t, NewOperator(r.coordinator.Journal()).Edit(t.Context(), "1", "z", json.RawMessage(`"new"`), By{Actor: "ann", Reason: "a typing error"}))
		r.coordinator.Nudge("1")
		got, err := r.engine.Wait(t.Context(), "1")
		if ok(t, err); !slices.Equal(inputs, []string{"old", "new", "old", "new"}) || len(got.Crossed) > 0 || string(got.Outputs.All()["z"]) != `"new"` {
			t.Errorf("%q, %+v", inputs, got)
		}
	})
}
