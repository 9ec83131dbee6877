package choreography_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/choreography"
)

// TestQueues: services and tracker consume their own queues in the database, with effects and the
// end of a message in one transaction. Handlers fail after their effects. Every effect happens
// once, and no event needs to be emitted again.
func TestQueues(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		const sagas = 10
		tracker := choreography.Tracker{Definition: shop(time.Hour), Outbox: box}
		d := tracker.Definition
		db := opened(t, open, tracker)
		var queues queue.Table
		db.Do(t, queues.Create)
		var calls atomic.Int64
		consume := func(name string, fn func(ctx context.Context, tx driver.SQL, m queue.Received) error) {
			in := queue.InTx(db, func(ctx context.Context, tx driver.SQL, m queue.Received) error {
				if err := fn(ctx, tx, m); err != nil {
					return err
				}
				if calls.Add(1)%5 == 0 {
					return errors.New("it fails after its effect")
				}
				return nil
			})
			c, err := queue.New(t.Context(), queue.FromTable(db, queues, nil), name, in, &queue.Options{MinPause: time.Millisecond, MaxPause: 10 * time.Millisecond,
				Concurrency: 4, Hooks: &observe.Queue{Log: observe.Silent}})
			testbed.OK(t, err)
			t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
		}
		receivers := []string{"tracker"}
		consume("tracker", func(ctx context.Context, tx driver.SQL, m queue.Received) error {
			return tracker.Observe(ctx, tx, m.QueueMessage)
		})
		declined := func(saga string) bool { return saga[len(saga)-1]%2 == 1 }
		for step := range d.Steps {
			name := fmt.Sprint("service", step)
			receivers = append(receivers, name)
			consume(name, func(ctx context.Context, tx driver.SQL, m queue.Received) error {
				e, ok := d.Read(m.QueueMessage)
				if !ok {
					return errors.New("a message without an event")
				}
				return handle(ctx, tx, service(d, step), step, e, declined)
			})
		}
		relayed(t, db, func(ctx context.Context, m driver.Message) error {
			return db.Try(ctx, func(ctx context.Context, tx driver.SQL) error {
				for _, name := range receivers {
					q := received(m)
					q.ID += "/" + name
					if err := queues.Add(ctx, tx, name, q); err != nil {
						return err
					}
				}
				return nil
			})
		})
		for i := range sagas {
			db.Do(t, func(ctx context.Context, tx driver.SQL) error { return place(ctx, tx, d, fmt.Sprint("saga", i)) })
		}
		var all []choreography.Saga
		testbed.Eventually(t, "every saga ends", bound, func() bool {
			db.Do(t, func(ctx context.Context, tx driver.SQL) (err error) {
				all, err = tracker.List(ctx, tx, choreography.Filter{})
				return err
			})
			ended := 0
			for _, s := range all {
				if s.State == choreography.Completed || s.State == choreography.Compensated {
					ended++
				}
			}
			return ended == sagas
		})
		for _, s := range all {
			if declined(s.ID) != (s.State == choreography.Compensated) {
				t.Errorf("%+v", s)
			}
			for step := range d.Steps {
				done, undone := effects(t, db, s.ID, step, "done"), effects(t, db, s.ID, step, "undone")
				if s.State == choreography.Completed && (done != 1 || undone != 0) || s.State == choreography.Compensated && done != undone || done > 1 {
					t.Errorf("%s is %s, and step %d was done %d times and undone %d times", s.ID, s.State, step, done, undone)
				}
			}
		}
	})
}
