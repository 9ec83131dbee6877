package saga

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/observe"
)

// TestEditCrossesACall: an edit of a step's input that crosses a call with the former one,
// of this owner or of a former one, is reported when that call was done.
func TestEditCrossesACall(t *testing.T) {
	for name, heir := range map[string]bool{"of this owner": false, "of a former owner": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				gate, block := make(chan struct{}), make(chan struct{})
				var inputs []string
				var crossed []observe.SagaCrossed
				z := Step("z", func(_ context.Context, in string) (string, error) {
					inputs = append(inputs, in)
					switch len(inputs) {
					case 1:
						return "", errNetwork // so that the journal knows the step
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
				ok(t, NewOperator(r.coordinator.Journal()).Retry(t.Context(), "1", "z", json.RawMessage(`"new"`), By{"ann", "a typing error"}))
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
					t.Errorf("told %+v", crossed)
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
		})
	}
}
