package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// watermillOutbox is a table of Watermill and its forwarder, which publishes its rows.
type watermillOutbox struct {
	pool     *pgxpool.Pool
	topic    string
	arrivals *arrivals // of this run
}

func newWatermill(tb testing.TB, server *testbed.Server) *watermillOutbox {
	w := &watermillOutbox{pool: poolOf(tb, server, connections), topic: fmt.Sprint("forward", fresh.Add(1))}
	s, err := w.subscribe()
	ok(tb, err)
	ok(tb, s.SubscribeInitialize(w.topic))
	ok(tb, s.Close())
	return w
}

func (w *watermillOutbox) subscribe() (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromPgx(w.pool), wsql.SubscriberConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, watermill.NopLogger{})
}

// put adds messages in a transaction.
func (w *watermillOutbox) put(ctx context.Context, numbers []int64) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		table, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		var some []*message.Message
		for _, m := range messages(numbers) {
			one := message.NewMessage(m.ID, m.Payload)
			one.Metadata.Set("key", m.Key)
			some = append(some, one)
		}
		return forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: w.topic}).Publish("bench", some...)
	})
}

// Publish implements the publisher of the forwarder.
func (w *watermillOutbox) Publish(_ string, all ...*message.Message) error {
	for _, m := range all {
		w.arrivals.handled(m.Metadata.Get("key"), m.UUID)
	}
	return nil
}

// Close does nothing.
func (w *watermillOutbox) Close() error { return nil }

// side adds messages, and then measures a forwarder that publishes them, from its start.
func (w *watermillOutbox) side() compare.Side {
	return backlog("Watermill's forwarder", w.put, func(ctx context.Context, a *arrivals) (end func(context.Context) error, err error) {
		w.arrivals = a
		a.fromHere()
		s, err := w.subscribe()
		if err != nil {
			return nil, err
		}
		f, err := forwarder.NewForwarder(s, w, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: w.topic})
		if err != nil {
			return nil, err
		}
		running := make(chan error, 1)
		go func() { running <- f.Run(ctx) }()
		return func(context.Context) error { return errors.Join(f.Close(), <-running, s.Close()) }, nil
	})
}
