package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/history"
)

// Who knows that ids can come late lets the relay wait: it sends only what is
// older than every transaction that is still under way. That is right, and stands
// still as soon as any transaction of the whole server does: a report, a backup,
// a session that somebody forgot. Meanwhile nothing at all is sent.
//
// The remedy is the same as for late-commit: without a cursor there is nothing to
// wait for. An uncommitted event holds up its own key, and no other.
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

// reporting drains the outbox while a long transaction, which has nothing to do
// with events, is open.
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
				_, err := tx.Exec(ctx, `select pg_current_xact_id()`) // as any write would have one
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

// newXminRelay leaves alone what may still be overtaken: rows of transactions that
// are not older than all that are under way.
func newXminRelay(_ context.Context, s *scene, topic string) (relay, error) {
	return &cursorRelay{s: s, topic: topic, only: `and tx < pg_snapshot_xmin(pg_current_snapshot())`}, nil
}
