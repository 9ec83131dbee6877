package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// watermillOutbox is a table of Watermill and its forwarder, which publishes its rows. The mail
// checks it as well.
type watermillOutbox struct {
	*mail
	pool       *pgxpool.Pool
	topic      string
	subscriber *wsql.Subscriber
}

func newWatermillOutbox(tb testing.TB, server *testbed.Server) *watermillOutbox {
	w := &watermillOutbox{mail: &mail{last: map[string]int{}}, pool: poolOf(tb, server, connections), topic: fmt.Sprint("forward", fresh.Add(1))}
	ok(tb, w.open())
	ok(tb, w.subscriber.SubscribeInitialize(w.topic))
	ok(tb, w.subscriber.Close())
	return w
}

func (w *watermillOutbox) open() (err error) {
	w.subscriber, err = wsql.NewSubscriber(wsql.BeginnerFromPgx(w.pool), wsql.SubscriberConfig{
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, watermill.NopLogger{})
	return err
}

// put adds messages in a transaction.
func (w *watermillOutbox) put(ctx context.Context, all []driver.Message) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		table, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		var some []*message.Message
		for _, m := range all {
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
		if err := w.deliver(context.Background(), driver.Message{ID: m.UUID, Key: m.Metadata.Get("key")}); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing.
func (w *watermillOutbox) Close() error { return nil }

// backlog adds messages, and then measures a forwarder that publishes them.
func (w *watermillOutbox) backlog(ctx context.Context, window time.Duration) (s compare.Sample, err error) {
	n := int(20_000 * window.Seconds())
	for left := n; left > 0; left -= 500 {
		if err := w.put(ctx, messages(min(left, 500))); err != nil {
			return s, err
		}
	}
	w.done.Store(0)
	began := time.Now()
	if err := w.open(); err != nil {
		return s, err
	}
	f, err := forwarder.NewForwarder(w.subscriber, w, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: w.topic})
	if err != nil {
		return s, err
	}
	running := make(chan error, 1)
	go func() { running <- f.Run(ctx) }()
	err = until(ctx, func() bool { return w.done.Load() >= int64(n) })
	s = compare.Sample{Ops: n, Total: n, Elapsed: time.Since(began)}
	err = errors.Join(err, f.Close(), <-running, w.subscriber.Close())
	s.Violations = w.check(n)
	return s, err
}
