package saga

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
)

// TestReconcilesInTheBackground: a coordinator checks what has ended by itself, and
// when a command asks for it; both report to the hooks.
func TestReconcilesInTheBackground(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &shop{sold: map[string]bool{}}
		good := Define("good", s.step("a", true), s.step("b", false))
		var mu sync.Mutex
		var wrong []string
		var gauge []observe.Reconciled
		o := &settings{saga: Options{Hooks: &observe.Saga{
			Mismatched: func(e observe.SagaMismatched) {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, e.Saga+" "+e.Step+" "+e.Got)
			},
			Reconciled: func(e observe.Reconciled) {
				mu.Lock()
				defer mu.Unlock()
				gauge = append(gauge, e)
			},
		}}}
		r := serve(t, nil, 1, o, good)
		_, err := good.Do(t.Context(), r.engine, "1", "in")
		ok(t, err)
		s.lose()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		mu.Lock()
		if got := strings.Join(wrong[:min(2, len(wrong))], ", "); got != "1 a present, 1 b absent" || len(gauge) == 0 || gauge[0].Wrong != 1 || gauge[0].Repaired != 1 || gauge[0].Err != nil {
			t.Errorf("%v, %+v", wrong, gauge)
		}
		mu.Unlock()

		j := r.coordinator.Journal()
		id, err := coordinator.RequestReconciliation(t.Context(), j, "saga", time.Now().Add(-24*time.Hour), time.Now())
		ok(t, err)
		time.Sleep(time.Minute)
		synctest.Wait()
		found, err := coordinator.ReconciliationOf(context.Background(), j, id)
		if ok(t, err); found == nil || found.Wrong != 1 || len(found.Findings) != 1 || found.Findings[0].Step != "b" {
			t.Errorf("%+v", found)
		}
	})
}
