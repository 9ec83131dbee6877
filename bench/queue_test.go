package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// queueCases compares queues that process a backlog.
func queueCases(tb testing.TB) []benchmark {
	server := sync.OnceValue(func() *testbed.Server { return startPostgres(tb) })
	const note = "one Postgres that syncs to disk; pools of 32 connections; from the first message of a backlog of 20,000 until all are handled and recorded; "
	add := compare.Goal{Metric: "added", Against: []string{"River"}}
	return []benchmark{
		{
			Case: compare.Case{Name: "queue/postgres/empty", Rounds: 5, Window: time.Second, Note: note + "handlers that do nothing",
				Goals: []compare.Goal{faster("River", 2), add}},
			smoke: true,
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{
					interlockQueue(tb, server(), "interlock", 1000, nothing, 0),
					interlockQueue(tb, server(), "interlock, no keys", 0, nothing, 0),
					riverQueue(tb, server(), func(context.Context, int64) error { return nil }),
				}
			},
		},
		{
			Case: compare.Case{Name: "queue/postgres/guarded", Rounds: 5, Window: time.Second, Note: note + "handlers that insert a row unless it is there",
				Goals: []compare.Goal{faster("River", 2), add}},
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{
					interlockQueue(tb, server(), "interlock", 1000, inBatches, 500),
					interlockQueue(tb, server(), "interlock, one by one", 1000, guarded, 0),
					riverQueue(tb, server(), insertOnce(tb, poolOf(tb, server(), connections))),
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
				ok(tb, pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error { return in.Create(tb.Context(), postgres.Tx(tx)) }))
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
		began := time.Now()
		consume := func() error {
			for time.Since(began) < window {
				numbers := make([]int64, 500)
				for i := range numbers {
					numbers[i] = fresh.Add(1)
				}
				if err := handle(ctx, numbers); err != nil {
					return err
				}
				total.Add(500)
			}
			return nil
		}
		other := make(chan error, 1)
		go func() { other <- consume() }()
		err := errors.Join(consume(), <-other)
		return compare.Sample{Ops: int(total.Load()), Total: int(total.Load()), Elapsed: time.Since(began)}, err
	}}
}

// backlog counts the messages of one run, and checks their order.
type backlog struct {
	began   sync.Once
	first   time.Time
	done    atomic.Int64
	effects effects

	mu    sync.Mutex
	last  map[string]int64 // number of the last message of a key
	wrong []string         // the first message that overtook another
}

// handled records one message. Messages with an empty key have no order.
func (b *backlog) handled(key string, number int64) {
	b.began.Do(func() { b.first = time.Now() })
	b.effects.add(strconv.FormatInt(number, 10))
	if key != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		if last := b.last[key]; number <= last && len(b.wrong) == 0 {
			b.wrong = append(b.wrong, fmt.Sprintf("message %d of %s came after %d", number, key, last))
		}
		b.last[key] = number
	}
	b.done.Add(1)
}

// work adds a backlog of n messages by add, 500 at a time, and measures until start has handled
// them all and close has returned.
func work(ctx context.Context, window time.Duration, add func(ctx context.Context, numbers []int64) error,
	start func(b *backlog) (end func(context.Context) error, err error)) (s compare.Sample, err error) {
	n, b := int(20_000*window.Seconds()), &backlog{last: map[string]int64{}}
	began := time.Now()
	for left := n; left > 0; left -= 500 {
		numbers := make([]int64, min(left, 500))
		for i := range numbers {
			numbers[i] = fresh.Add(1)
		}
		if err := add(ctx, numbers); err != nil {
			return s, err
		}
	}
	added := float64(n) / time.Since(began).Seconds()
	end, err := start(b)
	if err != nil {
		return s, err
	}
	err = until(ctx, func() bool { return b.done.Load() >= int64(n) })
	err = errors.Join(err, end(ctx))
	s = compare.Sample{Ops: n, Total: n, Elapsed: time.Since(b.first), Values: map[string]float64{"added": added}}
	s.Violations = append(b.effects.check(n), b.wrong...)
	return s, err
}

// handler creates the handler of a consumer.
type handler func(tb testing.TB, pool *pgxpool.Pool, b *backlog) queue.Handler

func nothing(_ testing.TB, _ *pgxpool.Pool, b *backlog) queue.Handler {
	return func(_ context.Context, m queue.Received) error {
		b.handled(m.Key, number(m))
		return nil
	}
}

func number(m queue.Received) int64 {
	n, _ := strconv.ParseInt(m.ID, 10, 64) // the checker detects errors
	return n
}

func guarded(tb testing.TB, pool *pgxpool.Pool, b *backlog) queue.Handler {
	insert := insertOnce(tb, pool)
	return func(ctx context.Context, m queue.Received) error {
		err := insert(ctx, number(m))
		if err == nil {
			b.handled(m.Key, number(m))
		}
		return err
	}
}

// inBatches inserts the rows of many messages in one statement, and settles them in its
// transaction.
func inBatches(tb testing.TB, pool *pgxpool.Pool, b *backlog) queue.Handler {
	insertOnce(tb, pool) // creates the table
	return queue.InTxBatch(postgres.Pool(pool), func(ctx context.Context, tx pgx.Tx, all []queue.Received) error {
		numbers := make([]int64, len(all))
		for i, m := range all {
			numbers[i] = number(m)
		}
		err := insertMany(ctx, tx, numbers)
		for _, m := range all {
			b.handled(m.Key, number(m))
		}
		return err
	})
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

// interlockQueue processes messages of the given number of keys; 0 means none. Concurrency 0 is the default.
func interlockQueue(tb testing.TB, server *testbed.Server, name string, keys int64, h handler, concurrency int) compare.Side {
	pool := poolOf(tb, server, connections)
	table := queue.Table{Name: fmt.Sprint("queue", fresh.Add(1))}
	ok(tb, pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error { return table.Create(tb.Context(), postgres.Tx(tx)) }))
	add := func(ctx context.Context, numbers []int64) error {
		all := make([]queue.Message, len(numbers))
		for i, n := range numbers {
			if all[i] = (queue.Message{ID: strconv.FormatInt(n, 10), Payload: []byte(filler)}); keys > 0 {
				all[i].Key = fmt.Sprint("key/", n%keys)
			}
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return table.Add(ctx, postgres.Tx(tx), "bench", all...) })
	}
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		return work(ctx, window, add, func(b *backlog) (func(context.Context) error, error) {
			c, err := queue.New(ctx, queue.FromTable(postgres.Pool(pool), table, nil), "bench", h(tb, pool, b), &queue.Options{InFlight: 2000, Concurrency: concurrency})
			if err != nil {
				return nil, err
			}
			return c.Close, nil
		})
	}}
}
