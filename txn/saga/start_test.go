package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestBegunAlone: a saga begun without its definition, by its name and JSON, equals the one
// that Start would begin, and continues in the same way.
func TestBegunAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g := &target{}
		d := Define("order", g.undoable("a"), g.act("p").Pivot(), g.act("z"))
		r := serve(t, nil, 1, nil, d)
		ctx, j := t.Context(), r.coordinator.Journal()
		ok(t, Begin(ctx, j, "order", "1", json.RawMessage(` "in" `)))
		same(t, "records", r.records(t, "1"), "begin:")
		_, err := d.Do(ctx, r.engine, "1", "in")
		ok(t, err)
		ok(t, Begin(ctx, j, "order", "1", json.RawMessage(`"in"`)))
		ok(t, r.engine.Start(ctx, "order", "2", json.RawMessage(`"in"`)))
		ok(t, d.Start(ctx, r.engine, "2", "in"))
		_, err = r.engine.Wait(ctx, "2")
		ok(t, err)
		same(t, "effects", g.did(), "1/a/do", "1/p/do", "1/z/do", "2/a/do", "2/p/do", "2/z/do")
		for _, err := range []error{
			Begin(ctx, j, "order", "1", json.RawMessage(`"else"`)), Begin(ctx, j, "bill", "1", json.RawMessage(`"in"`)),
			Begin(ctx, j, "", "3", nil), Begin(ctx, j, strings.Repeat("n", 201), "3", nil), Begin(ctx, j, "order", "3", json.RawMessage(`{`)),
			Begin(ctx, j, "order", strings.Repeat("n", driver.MaxTransaction+1), nil), r.engine.Start(ctx, "bill", "3", nil), r.engine.Start(ctx, "order", "3", json.RawMessage(`{`)),
		} {
			wantKind(t, err, interlock.Bug, nil)
		}
		if err := Begin(ctx, j, "order", "3", json.RawMessage(`{`)); err == nil || strings.Contains(err.Error(), "name") || !strings.Contains(err.Error(), "input") {
			t.Errorf("the input is wrong: %v", err)
		}
		if err := Begin(ctx, j, "", "3", nil); err == nil || !strings.Contains(err.Error(), "name has 0 bytes") {
			t.Errorf("the name is wrong: %v", err)
		}
		_, err = r.engine.Look(ctx, "3")
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
				r.stop()
				<-r.served
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

// TestEditCrossesACall: an edit of a step's input during a call with the former one, by this
// or a former owner, is reported if that call was done.
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
			r := serve(t, nil, 1, o, d)
			ok(t, d.Start(t.Context(), r.engine, "1", "old"))
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
			r := serve(t, nil, 1, o, d)
			ok(t, d.Start(t.Context(), r.engine, "1", "old"))
			synctest.Wait()
			r.stop()
			<-r.served
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
		r := serve(t, nil, 1, nil, d)
		ok(t, d.Start(t.Context(), r.engine, "1", "old"))
		synctest.Wait()
		ok(t, NewOperator(r.coordinator.Journal()).Edit(t.Context(), "1", "z", json.RawMessage(`"new"`), By{Actor: "ann", Reason: "a typing error"}))
		r.coordinator.Nudge("1")
		got, err := r.engine.Wait(t.Context(), "1")
		if ok(t, err); !slices.Equal(inputs, []string{"old", "new", "old", "new"}) || len(got.Crossed) > 0 || string(got.Outputs.All()["z"]) != `"new"` {
			t.Errorf("%q, %+v", inputs, got)
		}
	})
}
