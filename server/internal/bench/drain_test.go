package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

var errDown = errors.New("the target is down")

// TestDrain: sagas that are stuck because a target is down end once it is up again,
// at a quarter of the rate of healthy ones at least, with no more calls at once than
// the target has places: though each of them had put its next try off by then.
func TestDrain(t *testing.T) {
	sagas := 500
	if os.Getenv("INTERLOCK_BENCH") == "full" {
		sagas = 10_000
	}
	s := onPostgres(t)
	d := &drain{}
	ship := saga.Define("ship", saga.Step("ship", d.call).Pivot())
	e := serve(t, s, &coordinator.Options{PerTarget: places}, &observe.Saga{Ended: func(observe.SagaEnded) { d.ended.Add(1) }}, ship)

	d.down.Store(true)
	var work sync.WaitGroup
	starts := make(chan int)
	for range 64 {
		work.Go(func() {
			for i := range starts {
				if err := ship.Start(context.Background(), e, fmt.Sprintf("stuck/%d", i), "in"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range sagas {
		starts <- i
	}
	close(starts)
	work.Wait()
	testbed.Eventually(t, "each saga was tried", time.Minute, func() bool { return d.tried.Load() >= int64(sagas) })

	healed := time.Now()
	d.down.Store(false)
	testbed.Eventually(t, "each saga has ended", 5*time.Minute, func() bool { return d.ended.Load() >= int64(sagas) })
	drained := float64(sagas) / time.Since(healed).Seconds()

	var number atomic.Int64
	healthy := rate(t, 64, max(time.Second, time.Since(healed)/2), func(ctx context.Context) error {
		_, err := ship.Do(ctx, e, fmt.Sprintf("healthy/%d", number.Add(1)), "in")
		return err
	})
	fmt.Printf("%d stuck sagas: %.0f/s once their target healed, %.0f/s healthy ones (%.2f); at most %d calls at once\n",
		sagas, drained, healthy, drained/healthy, d.most.Load())
	if drained < healthy/4 {
		t.Errorf("they drain at %.0f/s, healthy ones at %.0f/s", drained, healthy)
	}
	if most := d.most.Load(); most > places || most < places/4 {
		t.Errorf("%d calls at once", most)
	}
}

// places is how many calls the target is to see at once.
const places = 32

// drain is a target that can be down, and the outcomes of the sagas that call it.
type drain struct {
	down         atomic.Bool
	tried, ended atomic.Int64
	inside, most atomic.Int64
}

func (d *drain) call(context.Context, string) (string, error) {
	inside := d.inside.Add(1)
	defer d.inside.Add(-1)
	for most := d.most.Load(); inside > most && !d.most.CompareAndSwap(most, inside); most = d.most.Load() {
	}
	time.Sleep(time.Millisecond) // a target takes its time
	if d.down.Load() {
		d.tried.Add(1)
		return "", saga.Retry(errDown)
	}
	return "shipped", nil
}
