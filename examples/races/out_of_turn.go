package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/history"
)

// Events of one customer are read in order and passed to a pool of workers, for
// throughput. Two workers have two events of the same customer, and the one with the
// later event writes first: the record has the old address again.
//
// The remedy is a queue per key: events of one customer are handled in order, those
// of different customers concurrently. This holds within one process; two-owners
// shows the fault between two processes.
var outOfTurn = race{
	name:    "out-of-turn",
	symptom: "after two quick changes of a record the first one remains",
	remedy:  "flow/keyed: Executor, in order for each key",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		return s.create(ctx, `create table if not exists race_address (customer text primary key, line text not null)`)
	},
	broken: moving(func(s *scene, _ string) (stage, func(context.Context) error, error) {
		return s.stage, func(context.Context) error { return nil }, nil // a goroutine for each event
	}),
	fixed: moving(func(s *scene, customer string) (stage, func(context.Context) error, error) {
		workers, err := keyed.NewExecutor(nil)
		if err != nil {
			return stage{}, nil, err
		}
		start := func(ctx context.Context, run func()) error {
			ctx = context.WithoutCancel(ctx) // each of them must run to its end
			return workers.Go(ctx, customer, func(context.Context) error { run(); return nil }, nil)
		}
		queued := func(context.Context) (int, error) { return workers.Load().Queued, nil }
		return stage{start, queued, s.note}, workers.Close, nil
	}),
	judge: history.CheckDeliveries,
	rule:  history.RuleKeyOrder,
}

// moving lets workers receive the events in order, and write in another one.
func moving(pool func(s *scene, customer string) (g stage, shut func(context.Context) error, err error)) twin {
	return func(ctx context.Context, s *scene) (err error) {
		customer, events := s.name("customer"), s.workers(4)
		g, shut, err := pool(s, customer)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, afterwards(ctx, shut)) }()
		var actors []actor
		for i, id := range events {
			s.told.Invoke(history.Event{Lane: "topic", Op: history.OpPublish, Key: customer, ID: id}).OK("")
			actors = append(actors, actor{id, func(ctx context.Context, pause func(string)) error {
				pause("the event belongs to this worker")
				call := s.told.Invoke(history.Event{Lane: "worker", Op: history.OpDeliver, Key: customer, ID: id})
				_, err := s.postgres.Exec(ctx, `insert into race_address values ($1, $2)
					on conflict (customer) do update set line = excluded.line`, customer, "address "+strconv.Itoa(i))
				call.End(err)
				return err
			}})
		}
		writes := s.shuffled(events)
		if writes[0] == events[0] {
			writes[0], writes[1] = writes[1], writes[0]
		}
		if err := g.act(ctx, append(events, writes...), actors...); err != nil {
			return err
		}
		s.told.Invoke(history.Event{Lane: "topic", Op: history.OpDrain}).OK("")
		return nil
	}
}
