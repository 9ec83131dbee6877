package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// queueCases compares queues that process a backlog.
func queueCases(tb testing.TB) []benchmark {
	server := lazily(tb, startPostgres)
	const note = "one Postgres that syncs to disk; pools of 32 connections; from the first message of a backlog of 20,000 until all are handled and recorded; "
	add := compare.Goal{Metric: "added", Against: []string{"River"}}
	return []benchmark{
		{
			Case: compare.Case{Name: "queue/postgres/empty", Rounds: 5, Window: time.Second, Note: note + "handlers that do nothing",
				Goals: []compare.Goal{faster("River", 2), add}},
			smoke: true,
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{
					interlockQueue(tb, server(), "interlock", 1000, guarded(nothing), 0),
					interlockQueue(tb, server(), "interlock, no keys", 0, guarded(nothing), 0),
					riverQueue(tb, server(), nothing),
				}
			},
		},
		{
			Case: compare.Case{Name: "queue/postgres/guarded", Rounds: 5, Window: time.Second, Note: note + "handlers that insert a row unless it is there",
				Goals: []compare.Goal{faster("River", 2), add}},
			open: func(tb testing.TB) []compare.Side {
				pool := poolOf(tb, server(), connections)
				insert := insertOnce(tb, pool)
				return []compare.Side{
					interlockQueue(tb, server(), "interlock", 1000, inBatches(pool), 500),
					interlockQueue(tb, server(), "interlock, one by one", 1000, guarded(insert), 0),
					riverQueue(tb, server(), insert),
				}
			},
		},
		{
			Case: compare.Case{Name: "inbox/postgres/batches", Rounds: 5, Window: time.Second,
				Note:  "one Postgres that syncs to disk; 2 consumers; messages in batches of 500, each batch a transaction with a row for each message",
				Goals: []compare.Goal{{Metric: compare.Rate, Want: 50_000}, faster("no inbox", 0)}},
			open: func(tb testing.TB) []compare.Side {
				pool := poolOf(tb, server(), connections)
				insertOnce(tb, pool)
				in := once.Inbox{Consumer: "bench"}
				ok(tb, driver.Create(tb.Context(), postgres.Pool(pool), in))
				return []compare.Side{
					batches("interlock", func(ctx context.Context, numbers []int64) error {
						messages := make([]once.Message, len(numbers))
						for i, n := range numbers {
							messages[i] = once.Message{ID: strconv.FormatInt(n, 10), Payload: []byte(filler)}
						}
						_, err := once.BatchTx(ctx, postgres.Pool(pool), in, messages, func(ctx context.Context, tx pgx.Tx, fresh []once.Message) error {
							return insertMany(ctx, tx, numbers)
						})
						return err
					}),
					batches("no inbox", func(ctx context.Context, numbers []int64) error {
						return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return insertMany(ctx, tx, numbers) })
					}),
				}
			},
		},
	}
}

// batches has two consumers handle batches of 500 messages.
func batches(name string, handle func(ctx context.Context, numbers []int64) error) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		var total atomic.Int64
		meter, began := compare.Start(), time.Now()
		var consumers errgroup.Group
		for range 2 {
			consumers.Go(func() error {
				for time.Since(began) < window {
					if err := handle(ctx, numbers(500)); err != nil {
						return err
					}
					total.Add(500)
				}
				return nil
			})
		}
		err := consumers.Wait()
		return meter.Sample(int(total.Load())), err
	}}
}

// handler creates the handler of a consumer.
type handler func(a *arrivals) queue.Handler

func number(m queue.Received) int64 {
	n, _ := strconv.ParseInt(m.ID, 10, 64) // the checker detects errors
	return n
}

// nothing is the insert of handlers that do nothing.
func nothing(context.Context, int64) error { return nil }

func guarded(insert func(ctx context.Context, number int64) error) handler {
	return func(a *arrivals) queue.Handler {
		return func(ctx context.Context, m queue.Received) error {
			err := insert(ctx, number(m))
			if err == nil {
				a.handled(m.Key, m.ID)
			}
			return err
		}
	}
}

// inBatches inserts the rows of many messages in one statement, and settles them in its
// transaction.
func inBatches(pool *pgxpool.Pool) handler {
	return func(a *arrivals) queue.Handler {
		return queue.InTxBatch(postgres.Pool(pool), func(ctx context.Context, tx pgx.Tx, all []queue.Received) error {
			numbers := make([]int64, len(all))
			for i, m := range all {
				numbers[i] = number(m)
			}
			err := insertMany(ctx, tx, numbers)
			for _, m := range all {
				a.handled(m.Key, m.ID)
			}
			return err
		})
	}
}

func insertMany(ctx context.Context, tx pgx.Tx, numbers []int64) error {
	_, err := tx.Exec(ctx, `insert into effect select n, $2 from unnest($1::bigint[]) n on conflict do nothing`, numbers, filler)
	return err
}

// insertOnce inserts the row of a message unless it exists.
func insertOnce(tb testing.TB, pool *pgxpool.Pool) func(ctx context.Context, number int64) error {
	_, err := pool.Exec(tb.Context(), `create table if not exists effect (id bigint primary key, text varchar(200))`)
	ok(tb, err)
	return func(ctx context.Context, number int64) error {
		_, err := pool.Exec(ctx, `insert into effect values ($1, $2) on conflict do nothing`, number, filler)
		return err
	}
}

// payloads returns messages of the given number of keys; 0 means none.
func payloads(numbers []int64, keys int64) []queue.Message {
	all := make([]queue.Message, len(numbers))
	for i, n := range numbers {
		all[i] = queue.Message{ID: strconv.FormatInt(n, 10), Key: keyOf(n, keys), Payload: []byte(filler)}
	}
	return all
}

// consumer starts a consumer of a topic. Concurrency 0 is the default.
func consumer(store driver.Queue, topic string, concurrency int, h handler) func(context.Context, *arrivals) (func(context.Context) error, error) {
	return func(ctx context.Context, a *arrivals) (func(context.Context) error, error) {
		c, err := queue.New(ctx, store, topic, h(a), &queue.Options{InFlight: 2000, Concurrency: concurrency})
		if err != nil {
			return nil, err
		}
		return c.Close, nil
	}
}

// interlockQueue processes messages of the given number of keys; 0 means none.
func interlockQueue(tb testing.TB, server *testbed.Server, name string, keys int64, h handler, concurrency int) compare.Side {
	pool := poolOf(tb, server, connections)
	table := queue.Table{Name: fmt.Sprint("queue", fresh.Add(1))}
	ok(tb, driver.Create(tb.Context(), postgres.Pool(pool), table))
	add := func(ctx context.Context, numbers []int64) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return table.Add(ctx, postgres.Tx(tx), "bench", payloads(numbers, keys)...) })
	}
	return backlog(name, add, consumer(queue.FromTable(postgres.Pool(pool), table, nil), "bench", concurrency, h))
}

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
