package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

// places is the number of concurrent calls of the target.
const places = 32

// drainCase compares sagas that were blocked by an unavailable target, from its recovery, with
// healthy ones, although each had postponed its next attempt by then.
func drainCase(server func() *testbed.Server) benchmark {
	return benchmark{
		Case: compare.Case{Name: "saga/drain", Rounds: 1, Window: 3 * time.Second, Goals: []compare.Goal{faster("healthy", 0.25)},
			Note: fmt.Sprintf("one Postgres that syncs to disk; a target that takes 1 ms for a call, and %d calls at once", places)},
		smoke: true,
		open: func(tb testing.TB) []compare.Side {
			d := &drain{}
			d.ship = saga.Define("ship", saga.Step("ship", d.call).Pivot())
			hooks := &observe.Saga{Ended: func(observe.SagaEnded) { d.ended.Add(1) }, Log: observe.Silent}
			store, _ := onPostgres(tb, server())
			d.engine = engineOf(tb, undivided(tb, store, &coordinator.Options{PerTarget: places}), hooks, d.ship)
			healthy := func(ctx context.Context, _ int) error { return succeed(ctx, d.engine, d.ship, "in") }
			return []compare.Side{{Name: "stuck", Run: d.stuck}, compare.Clients("healthy", 64, healthy, nil)}
		},
	}
}

// drain is a target that can be unavailable, and sagas that call it.
type drain struct {
	ship         saga.Definition[string]
	engine       *saga.Engine
	down         atomic.Bool
	tried, ended atomic.Int64
	inside, most atomic.Int64
}

func (d *drain) call(context.Context, string) (string, error) {
	inside := d.inside.Add(1)
	defer d.inside.Add(-1)
	for most := d.most.Load(); inside > most && !d.most.CompareAndSwap(most, inside); most = d.most.Load() {
	}
	time.Sleep(time.Millisecond) // the time of a call
	if d.down.Load() {
		d.tried.Add(1)
		return "", saga.Retry(errors.New("the target is down"))
	}
	return "shipped", nil
}

// stuck starts a thousand sagas per second of the window while the target is unavailable, and
// measures from its recovery until they have ended.
func (d *drain) stuck(ctx context.Context, window time.Duration) (compare.Sample, error) {
	sagas := max(100, int(1000*window.Seconds()))
	d.down.Store(true)
	d.tried.Store(0)
	d.ended.Store(0)
	var starts errgroup.Group
	starts.SetLimit(64)
	for range sagas {
		starts.Go(func() error { return d.ship.Start(ctx, d.engine, fmt.Sprintf("stuck/%d", fresh.Add(1)), "in") })
	}
	if err := starts.Wait(); err != nil {
		return compare.Sample{}, err
	}
	if err := until(ctx, func() bool { return d.tried.Load() >= int64(sagas) }); err != nil {
		return compare.Sample{}, fmt.Errorf("%d of %d sagas were tried: %w", d.tried.Load(), sagas, err)
	}
	meter := compare.Start()
	d.down.Store(false)
	if err := until(ctx, func() bool { return d.ended.Load() >= int64(sagas) }); err != nil {
		return compare.Sample{}, fmt.Errorf("%d of %d sagas have ended: %w", d.ended.Load(), sagas, err)
	}
	s := meter.Sample(sagas)
	if most := d.most.Load(); most > places || most < places/4 {
		s.Violations = []string{fmt.Sprintf("%d calls at once, and the target has %d places", most, places)}
	}
	return s, nil
}

// until waits for a condition, for at most five minutes.
func until(ctx context.Context, condition func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for !condition() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
