package saga

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHealedTarget: what waits for a target that did not answer is called again as soon as
// that answers another, and not when it has said when itself.
func TestHealedTarget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const sagas = 6 // enough that their target counts as sick
		var mu sync.Mutex
		var ill atomic.Bool
		ill.Store(true)
		calls := map[string][]time.Duration{}
		from := time.Now()
		call := func(ctx context.Context) {
			mu.Lock()
			defer mu.Unlock()
			key := From(ctx).Key()
			calls[key] = append(calls[key], time.Since(from))
		}
		a := Step("a", func(ctx context.Context, _ string) (int, error) {
			if call(ctx); ill.Load() {
				return 0, Retry(errNetwork)
			}
			return 1, nil
		}).Uncompensable().Target("bank").Retry(Policy{First: 100 * time.Second, Max: 100 * time.Second})
		b := Step("b", func(ctx context.Context, _ string) (int, error) {
			if call(ctx); From(ctx).Attempt == 1 {
				return 0, Ongoing(40 * time.Second)
			}
			return 1, nil
		}).Uncompensable()
		d, well := Define("order", Parallel[string](a, b)), Define("well", a)
		r := serve(t, nil, 1, nil, d, well)
		for i := range sagas {
			ok(t, d.Start(t.Context(), r.engine, fmt.Sprint(i), "in"))
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		ill.Store(false)
		_, err := well.Do(t.Context(), r.engine, "well", "in")
		ok(t, err)
		for i := range sagas {
			_, err := r.engine.Wait(t.Context(), fmt.Sprint(i))
			ok(t, err)
			for step, at := range map[string]time.Duration{"a": 10 * time.Second, "b": 40 * time.Second} {
				if c := calls[fmt.Sprintf("%d/%s/do", i, step)]; len(c) != 2 || c[0] != 0 || c[1] != at {
					t.Errorf("%d: %s was called at %v", i, step, c)
				}
			}
		}
	})
}
