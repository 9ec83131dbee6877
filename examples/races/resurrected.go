package main

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/history"
)

// An order is created, paid, packed and cancelled, and each of these events reaches
// the consumer by its own path. The cancellation overtakes another event, which
// arrives last, and the cancelled order is active again.
//
// The remedy is a version from the producer of the events. The consumer raises it in
// the transaction that writes, and skips older events. The cancellation is also
// terminal: nothing follows it.
var resurrected = race{
	name:    "resurrected",
	symptom: "a cancelled order is open again, a deleted record is back",
	remedy:  "guard/version: Table or Column, before the write",
	system:  onPostgres,
	prepare: func(ctx context.Context, s systems) error {
		err := s.create(ctx, `create table if not exists race_order (id text primary key, status text not null, event bigint not null)`)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error { return seen.Create(ctx, postgres.Tx(tx)) })
	},
	broken: arriving(writeStatus),
	fixed:  arriving(writeIfNewer),
	judge:  history.CheckVersions,
	rule:   history.RuleVersion,
}

var seen = version.Table{Name: "race_version"}

// orderEvent is one event; number counts them.
type orderEvent struct {
	order, status string
	number        int64
}

var lifeOfAnOrder = []string{"created", "paid", "packed", "cancelled"}

// arriving delivers the events in an order in which the last one is not last.
func arriving(handle func(ctx context.Context, tx pgx.Tx, e orderEvent) (applied bool, err error)) twin {
	return func(ctx context.Context, s *scene) error {
		order := s.name("order")
		var actors []actor
		for i, status := range lifeOfAnOrder {
			e := orderEvent{order, status, int64(i + 1)}
			actors = append(actors, actor{status, func(ctx context.Context, _ func(string)) error { return s.handle(ctx, e, handle) }})
		}
		arrivals := s.shuffled(lifeOfAnOrder)
		for slices.Index(arrivals, "cancelled") == len(arrivals)-1 {
			arrivals = s.shuffled(lifeOfAnOrder)
		}
		if err := s.act(ctx, arrivals, actors...); err != nil {
			return err
		}
		var last int64
		err := s.postgres.QueryRow(ctx, `select event from race_order where id = $1`, order).Scan(&last)
		s.state(history.OpVersion, order, last)
		return err
	}
}

func (s *scene) handle(ctx context.Context, e orderEvent, handle func(context.Context, pgx.Tx, orderEvent) (bool, error)) error {
	call := s.told.Invoke(history.Event{Lane: "consumer", Op: history.OpApply, Key: e.order, Stamp: e.number, Value: e.status})
	applied := false
	err := pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) (err error) {
		applied, err = handle(ctx, tx, e)
		return err
	})
	if err == nil && !applied {
		call.EndWith(refused("a newer version is stored"))
		return nil
	}
	call.End(err)
	return err
}

func writeStatus(ctx context.Context, tx pgx.Tx, e orderEvent) (bool, error) {
	_, err := tx.Exec(ctx, `insert into race_order values ($1, $2, $3)
		on conflict (id) do update set status = excluded.status, event = excluded.event`, e.order, e.status, e.number)
	return true, err
}

func writeIfNewer(ctx context.Context, tx pgx.Tx, e orderEvent) (bool, error) {
	outcome, err := seen.Apply(ctx, postgres.Tx(tx), version.Change{
		Entity: e.order, Stamp: version.Stamp{Version: e.number}, Terminal: e.status == "cancelled"})
	if err != nil || outcome != version.Applied {
		return false, err
	}
	return writeStatus(ctx, tx, e)
}
