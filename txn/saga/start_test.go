package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// TestBegunAlone: a saga that was begun without its definition, by its name and JSON,
// is the one that Start would have begun, and goes the same way.
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

// TestManySteps: what is more than one append takes is right in parts: an engine that
// crashes between them leaves a saga that is undone wholly, in order.
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
