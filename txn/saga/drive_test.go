package saga

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestHealedTarget: calls wait for a failed target. They are repeated as soon as it answers
// another one, but not those for which the target has set the time.
func TestHealedTarget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const sagas = 6 // so many that their target counts as sick
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
				return 0, InProgress(40 * time.Second)
			}
			return 1, nil
		}).Uncompensable()
		c := Step("c", func(ctx context.Context, _ string) (int, error) {
			call(ctx)
			return 1, []error{txntest.Busy(30 * time.Second), txntest.Busy(time.Hour), nil}[From(ctx).Attempt-1]
		}).Uncompensable()
		d, well := Define("order", Parallel[string](a, b, c)), Define("well", a)
		r := serve(t, nil, 1, nil, d, well)
		for i := range sagas {
			ok(t, d.Start(t.Context(), r.engine, fmt.Sprint(i), "in"))
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		ill.Store(false)
		ok(t, txntest.Second(well.Do(t.Context(), r.engine, "well", "in")))
		for i := range sagas {
			ok(t, txntest.Second(r.engine.Wait(t.Context(), fmt.Sprint(i))))
			for step, want := range map[string][]time.Duration{"a": {0, 10 * time.Second}, "b": {0, 40 * time.Second}, "c": {0, 30 * time.Second, 90 * time.Second}} {
				mu.Lock()
				c := calls[fmt.Sprintf("%d/%s/do", i, step)]
				mu.Unlock()
				if !slices.Equal(c, want) {
					t.Errorf("%d: %s was called at %v", i, step, c)
				}
			}
		}
	})
}

// TestWaitsForItsTarget: a step that waits is not called earlier because the target of a completed step, whose
// first call had failed, recovers.
func TestWaitsForItsTarget(t *testing.T) {
	onTarget(t, func(t *testing.T, g *target) {
		var calls atomic.Int64
		b := Step("b", func(context.Context, string) (string, error) {
			calls.Add(1)
			return "", Retry(errNetwork)
		}).Retry(Policy{First: 50 * time.Second, Max: 50 * time.Second}).Uncompensable()
		quick := Policy{First: time.Millisecond, Max: time.Millisecond}
		flap := Define("flap", g.act("f", repeat(5, errNetwork)...).Target("A").Retry(quick).Uncompensable())
		order := Define("order", g.undoable("a", errNetwork).Target("A"), b)
		r := serve(t, nil, 1, nil, order, flap)
		ok(t, order.Start(t.Context(), r.engine, "1", "in"))
		time.Sleep(time.Second)
		before := calls.Load()
		ok(t, txntest.Second(flap.Do(t.Context(), r.engine, "2", "in")))
		synctest.Wait()
		if n := calls.Load(); before == 0 || n != before {
			t.Errorf("%d calls, then %d", before, n)
		}
	})
}

// TestNothingFails: no error of driving is reported for regular sagas, with any end.
func TestNothingFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var failed []error
		hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) }}
		g := &target{}
		var never atomic.Bool
		good, dead := Define("good", g.undoable("a"), Sleep[string]("w", time.Hour), g.act("p").Pivot(), g.act("z")), buried(g, &never)
		function := DefineFunc("function", func(s *Run, in string) error { _, err := g.undoable("a").Do(s, in); return errors.Join(err, errSeat) }, g.undoable("a"))
		r := serve(t, nil, 1, &settings{Options: coordinator.Options{Poll: time.Minute, Hooks: hooks}}, good, dead, function)
		for d, want := range map[*Definition[string]]State{&good: Succeeded, &dead: DeadLetter, &function: Compensated} {
			if o, _ := d.Do(t.Context(), r.engine, d.plan.name, "in"); o.State != want {
				t.Errorf("%+v", o)
			}
		}
		time.Sleep(48 * time.Hour)
		if len(failed) > 0 {
			t.Error(failed)
		}
	})
}

// TestMistakeIsTold: a result that the machine rejects is reported as a bug of this package. Nothing
// of it is written, and the saga is driven again.
func TestMistakeIsTold(t *testing.T) {
	for kind, rejected := range map[string]string{"step": "done", "step in a transaction": "tried"} {
		runBubble(t, kind, func(t *testing.T) {
			var failed []error
			var run *Run
			calls, db := 0, &ram{store: memory.NewJournal()}
			act := func(context.Context, string) (string, error) {
				calls++
				run.m.over = calls == 1 // nothing follows an end
				return "", nil
			}
			a := Step("a", act).Uncompensable()
			if kind != "step" {
				a = StepTx("a", db, db, func(ctx context.Context, tx driver.Tx[driver.SQL], input string) (string, error) {
					return act(ctx, input)
				}).Uncompensable()
			}
			d := DefineFunc("f", func(s *Run, in string) error { run = s; _, err := a.Do(s, in); return err }, a)
			hooks := &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { failed = append(failed, e.Err) }}
			tried := &observe.Saga{Tried: func(e observe.SagaTried) { failed = append(failed, e.Err) }} // nothing was committed
			r := serve(t, &watched{Journal: db.store}, 1, &settings{Options: coordinator.Options{Hooks: hooks}, saga: Options{Hooks: tried}}, d)
			_, err := d.Do(t.Context(), r.engine, "1", "in")
			if ok(t, err); calls != 2 || len(failed) == 0 || interlock.Kind(failed[0]) != interlock.Bug || !strings.Contains(failed[0].Error(), `drive saga "1": record `+rejected+` "a" in state "RUNNING"`) {
				t.Errorf("%d calls, reported %v", calls, failed)
			}
			same(t, "records", r.records(t, "1"), "begin:", "sent:a", "done:a", "decide:commit", "end:")
		})
	}
}

// outage is a store whose n-th append fails, and all after it for a while.
type outage struct {
	*memory.Journal
	at int

	mu      sync.Mutex
	appends int
	until   time.Time
}

func (o *outage) away() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.appends++; o.appends == o.at {
		o.until = time.Now().Add(1500 * time.Millisecond)
	}
	return time.Now().Before(o.until)
}

func (o *outage) Append(ctx context.Context, appends []driver.Append) []error {
	if o.away() {
		return repeat(len(appends), errNetwork)
	}
	return o.Journal.Append(ctx, appends)
}

// TestPartOfAWriteFails: records for more than one append are neither repeated nor omitted in
// part. The store is down, before any of the parts, for longer than the owner's patience.
func TestPartOfAWriteFails(t *testing.T) {
	for at := 2; at <= 5; at++ {
		bubble(t, func(t *testing.T) {
			g, store := &target{}, &outage{Journal: memory.NewJournal(), at: at}
			var group []Stage[string]
			for i := range driver.MaxRecords + 8 {
				group = append(group, g.undoable(fmt.Sprint("s", i)))
			}
			d := Define("order", Parallel(group...), g.act("p").Pivot())
			e, err := build(open(t, store, journal.Options{Shards: 1, Patience: time.Second}), &settings{}, d)
			ok(t, err)
			(&rig{engine: e, coordinator: e.coordinator}).serve(t, 1)
			ok(t, d.Start(t.Context(), e, "1", "in"))
			time.Sleep(5 * time.Minute)
			o, err := e.Look(t.Context(), "1")
			if err != nil || o.State != Succeeded || len(g.did()) != len(group)+1 {
				t.Errorf("away at append %d: %s, %v; %d effects", at, o.State, err, len(g.did()))
			}
		})
	}
}
