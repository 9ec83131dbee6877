package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/history"
)

// Producers write events into a table, each in its own transaction. A relay reads rows with an id
// above the last one that it has sent. Ids are assigned when rows are written, not when they are
// committed. A row with a low id that commits late appears below the relay's cursor, and is never
// sent.
//
// The remedy is a relay without a cursor: that of flow/outbox sends all rows and
// deletes them under a claim. Add locks the key before it assigns ids, so their order
// is also that of the commits.
var lateCommit = race{
	name:    "late-commit",
	symptom: "sometimes an event in the outbox is never sent",
	remedy:  "flow/outbox: Table.Add and Relay",
	system:  onPostgres,
	prepare: prepareOutbox,
	broken:  committingLate(newCursorRelay),
	fixed:   committingLate(newClaimedRelay),
	judge:   history.CheckDeliveries,
	rule:    history.RuleDelivered,
}

// committingLate lets the first writer commit after the relay has
// read.
func committingLate(open func(ctx context.Context, s *scene, topic string) (relay, error)) twin {
	return func(ctx context.Context, s *scene) (err error) {
		topic := s.name("orders")
		r, err := open(ctx, s, topic)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		o := &office{scene: s, relay: r, topic: topic}
		actors := []actor{{"relay", func(ctx context.Context, pause func(string)) error { return o.drain(ctx) }}}
		producers := s.shuffled(s.workers(4))
		for _, id := range producers {
			actors = append(actors, actor{id, func(ctx context.Context, pause func(string)) error {
				return o.produce(ctx, id, pause)
			}})
		}
		order := append([]string{}, producers...)
		order = append(order, s.shuffled(producers[1:])...)
		order = append(order, "relay", producers[0])
		if err := s.act(ctx, order, actors...); err != nil {
			return err
		}
		return o.drain(ctx)
	}
}

// cursorRelay stores the highest id that it has sent.
type cursorRelay struct {
	s           *scene
	topic, only string
	cursor      int64
}

func newCursorRelay(_ context.Context, s *scene, topic string) (relay, error) {
	return &cursorRelay{s: s, topic: topic}, nil
}

func (r *cursorRelay) add(ctx context.Context, tx pgx.Tx, id string) error {
	_, err := tx.Exec(ctx, `insert into race_event (topic, message) values ($1, $2)`, r.topic, id)
	return err
}

func (r *cursorRelay) send(ctx context.Context, _ []string) error {
	rows, err := r.s.postgres.Query(ctx, `select id, message from race_event where topic = $1 and id > $2 `+r.only+` order by id`, r.topic, r.cursor)
	if err != nil {
		return err
	}
	var message string
	_, err = pgx.ForEachRow(rows, []any{&r.cursor, &message}, func() error {
		r.s.deliver(r.topic, message)
		return nil
	})
	return err
}

func (r *cursorRelay) close() error { return nil }
