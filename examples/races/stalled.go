package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/history"
)

// A relay can wait because ids can commit late: it sends only rows that are older
// than every open transaction. That is correct, but it stops as soon as any
// transaction of the server stays open: a report, a backup, a forgotten session.
// Meanwhile it sends nothing at all.
//
// The remedy is the same as for late-commit: a relay without a cursor need not wait.
// An uncommitted event delays its own key, and no other.
var stalled = race{
	name:    "stalled-outbox",
	symptom: "events stop for minutes, then arrive at once",
	remedy:  "flow/outbox: Relay, which waits for no transaction of others",
	system:  onPostgres,
	prepare: prepareOutbox,
	broken:  reporting(newXminRelay),
	fixed:   reporting(newClaimedRelay),
	judge:   history.CheckDeliveries,
	rule:    history.RuleDelivered,
}

// reporting drains the outbox while a long transaction without events is
// open.
func reporting(open func(ctx context.Context, s *scene, topic string) (relay, error)) twin {
	return func(ctx context.Context, s *scene) (err error) {
		topic := s.name("orders")
		r, err := open(ctx, s, topic)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		o := &office{scene: s, relay: r, topic: topic}
		report := actor{"report", func(ctx context.Context, pause func(string)) error {
			return pgx.BeginFunc(ctx, s.postgres, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `select pg_current_xact_id()`) // assigned as by any write
				s.told.Record(history.Event{Lane: "report", Kind: history.FaultBegin, Op: "long transaction"})
				pause("")
				s.told.Record(history.Event{Lane: "report", Kind: history.FaultEnd, Op: "long transaction"})
				return err
			})
		}}
		producers := s.workers(4)
		actors := []actor{report, {"relay", func(ctx context.Context, _ func(string)) error { return o.drain(ctx) }}}
		for _, id := range producers {
			actors = append(actors, actor{id, func(ctx context.Context, _ func(string)) error {
				return o.produce(ctx, id, func(string) {})
			}})
		}
		order := append([]string{"report"}, s.shuffled(producers)...)
		if err := s.act(ctx, append(order, "relay", "report"), actors...); err != nil {
			return err
		}
		return o.drain(ctx)
	}
}

// newXminRelay skips rows that others may still overtake: those of transactions that
// are not older than every open transaction.
func newXminRelay(_ context.Context, s *scene, topic string) (relay, error) {
	return &cursorRelay{s: s, topic: topic, only: `and tx < pg_snapshot_xmin(pg_current_snapshot())`}, nil
}
