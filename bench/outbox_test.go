package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/kafka"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

func outboxCases(tb testing.TB) (cases []benchmark) {
	for _, store := range []struct {
		name, note string
		most       float64 // seconds from the commit to the sink
		start      func(tb testing.TB, extra ...string) *testbed.Server
		open       func(tb testing.TB, server *testbed.Server) *mail
		goals      []compare.Goal
		others     func(tb testing.TB, server *testbed.Server) []compare.Side // of a backlog
	}{
		{"postgres", "one Postgres that syncs to disk; a notifier by NOTIFY", 0.002, startPostgres, mailOnPostgres, []compare.Goal{faster("Watermill's forwarder", 5)},
			func(tb testing.TB, server *testbed.Server) []compare.Side {
				return []compare.Side{newWatermill(tb, server).side()}
			}},
		{"mariadb", "one MariaDB that syncs to disk; the relay looks again and again", 0.005, startMariaDB, mailOnMariaDB, nil,
			func(testing.TB, *testbed.Server) []compare.Side { return nil }},
	} {
		server := lazily(tb, store.start)
		cases = append(cases,
			benchmark{
				Case: compare.Case{Name: "outbox/" + store.name + "/latency", Window: 2 * time.Second, Rounds: 3,
					Note:  store.note + "; 100 messages a second, each in a transaction of its own; from when the commit is sent",
					Goals: []compare.Goal{{Metric: compare.P50, Want: store.most, AtMost: true}, {Metric: compare.P99}}},
				smoke: true,
				open: func(tb testing.TB) []compare.Side {
					m := store.open(tb, server())
					return []compare.Side{{Name: "interlock", Run: m.latency}}
				},
			},
			benchmark{
				Case: compare.Case{Name: "outbox/" + store.name + "/backlog", Rounds: 3, Window: time.Second,
					Note:  store.note + "; one relay, from when it begins until all of a backlog of 20,000 messages of 100 keys were delivered; commits by 32 clients",
					Goals: append([]compare.Goal{{Metric: compare.Rate, Want: 20_000}, faster("commits", 0)}, store.goals...)},
				open: func(tb testing.TB) []compare.Side {
					m := store.open(tb, server())
					return append([]compare.Side{backlog("interlock", m.put, m.relayed), commits(32, m.commit)}, store.others(tb, server())...)
				},
			})
	}
	return append(cases, benchmark{
		Case: compare.Case{Name: "outbox/postgres/kafka", Window: 2 * time.Second, Rounds: 3,
			Note:  "as outbox/postgres/latency, with Kafka as the sink; from when the commit is sent until the broker has acknowledged",
			Goals: []compare.Goal{{Metric: compare.P50, Want: 0.005, AtMost: true}, {Metric: compare.P99}}},
		open: func(tb testing.TB) []compare.Side {
			return []compare.Side{{Name: "interlock", Run: mailToKafka(tb, startPostgres(tb), testbed.Kafka(tb)).latency}}
		},
	})
}

// mail is an outbox whose sink counts messages.
type mail struct {
	relay    *outbox.Relay
	sink     driver.Sink // nil if the mail itself is the sink
	add      func(ctx context.Context, messages []driver.Message, committing func()) error
	commit   commit
	arrivals *arrivals // of this run
}

// mailToKafka returns a mail whose sink is Kafka: it counts acknowledged messages.
func mailToKafka(tb testing.TB, server, broker *testbed.Server) *mail {
	c, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.AllowAutoTopicCreation())
	ok(tb, err)
	defer c.Close()
	ok(tb, c.ProduceSync(tb.Context(), &kgo.Record{Topic: "bench"}).FirstErr()) // creates the topic
	sink, err := kafka.OpenSink("kafka://"+broker.Addr(), nil)
	ok(tb, err)
	tb.Cleanup(sink.Close)
	m := mailOnPostgres(tb, server)
	m.sink = sink
	return m
}

func mailOnPostgres(tb testing.TB, server *testbed.Server) *mail {
	pool := poolOf(tb, server, connections)
	notifier, err := postgres.NewNotifier(pool.Config().ConnConfig, "bench", nil)
	ok(tb, err)
	closeAfter(tb, notifier.Close)
	return newMail(tb, postgres.Pool(pool), postgres.Tx, notifier, postgresCommit(tb, pool))
}

func mailOnMariaDB(tb testing.TB, server *testbed.Server) *mail {
	db := mariadbPool(tb, server, connections)
	return newMail(tb, mysql.DB(db), mysql.Tx, nil, mariadbCommit(tb, db))
}

func newMail[T any](tb testing.TB, db driver.BeginnerAt[T], sql func(T) driver.SQL, notifier driver.Notifier, commit commit) *mail {
	box := outbox.Table{Name: fmt.Sprint("outbox", fresh.Add(1))}
	ok(tb, outbox.Tx(tb.Context(), db, nil, func(ctx context.Context, tx T) error { return box.Create(ctx, sql(tx)) }))
	m := &mail{commit: commit}
	m.add = func(ctx context.Context, messages []driver.Message, committing func()) error {
		return outbox.Tx(ctx, db, notifier, func(ctx context.Context, tx T) error {
			defer committing()
			return box.Add(ctx, sql(tx), messages...)
		})
	}
	var err error
	m.relay, err = outbox.NewRelay(db, box, m, &outbox.Options{Notifier: notifier, Hooks: &observe.Outbox{Log: observe.Silent}})
	ok(tb, err)
	return m
}

// Publish implements the sink.
func (m *mail) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	if m.sink != nil {
		answers = m.sink.Publish(ctx, messages)
	}
	for i, message := range messages {
		if answers[i] == nil {
			m.arrivals.handled(message.Key, message.ID)
		}
	}
	return answers
}

// messages returns messages, over a hundred keys.
func messages(numbers []int64) (all []driver.Message) {
	for _, n := range numbers {
		all = append(all, driver.Message{ID: fmt.Sprint(n), Topic: "bench", Key: keyOf(n, 100), Payload: []byte(filler)})
	}
	return all
}

// put adds messages in one transaction.
func (m *mail) put(ctx context.Context, numbers []int64) error {
	return m.add(ctx, messages(numbers), func() {})
}

// relayed runs the relay, and measures from its start.
func (m *mail) relayed(_ context.Context, a *arrivals) (end func(context.Context) error, err error) {
	m.arrivals = a
	a.fromHere()
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		return nil, err
	}
	running := locks.Start("relay", m.relay.RunAll)
	return func(ctx context.Context) error {
		running.Close(ctx)
		return errors.Join(locks.Close(ctx), d.Close(ctx))
	}, nil
}

// latency adds a hundred messages a second while the relay runs.
func (m *mail) latency(ctx context.Context, window time.Duration) (s compare.Sample, err error) {
	a := newArrivals()
	end, err := m.relayed(ctx, a)
	if err != nil {
		return s, err
	}
	n := max(3, int(100*window.Seconds()))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range n {
		<-tick.C
		number := fresh.Add(1)
		if err := m.add(ctx, messages([]int64{number}), func() { a.send(number) }); err != nil {
			return s, errors.Join(err, end(ctx))
		}
	}
	s, err = a.end(ctx, n, end)
	s.Elapsed = window
	return s, err
}

// job is a job of River, with as much text as the messages have.
type job struct {
	Number int64  `json:"number"`
	Text   string `json:"text"`
}

func (job) Kind() string { return "bench" }

// riverQueue processes jobs with River, with the options of its own benchmark: the defaults fetch
// 100 jobs every 100 ms.
func riverQueue(tb testing.TB, server *testbed.Server, do func(ctx context.Context, number int64) error) compare.Side {
	pool := poolOf(tb, server, connections)
	db := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(db, nil)
	ok(tb, err)
	_, err = migrator.Migrate(tb.Context(), rivermigrate.DirectionUp, nil)
	ok(tb, err)
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	inserter, err := river.NewClient(db, &river.Config{Logger: silent})
	ok(tb, err)
	add := func(ctx context.Context, numbers []int64) error {
		all := make([]river.InsertManyParams, len(numbers))
		for i, n := range numbers {
			all[i].Args = job{n, filler}
		}
		_, err := inserter.InsertManyFast(ctx, all)
		return err
	}
	side := backlog("River", add, func(ctx context.Context, a *arrivals) (func(context.Context) error, error) {
		workers := river.NewWorkers()
		river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[job]) error {
			err := do(ctx, j.Args.Number)
			if err == nil {
				a.handled("", strconv.FormatInt(j.Args.Number, 10))
			}
			return err
		}))
		c, err := river.NewClient(db, &river.Config{Logger: silent, Workers: workers, FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 5 * time.Millisecond,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}})
		if err != nil {
			return nil, err
		}
		return c.Stop, c.Start(ctx)
	})
	return compare.Side{Name: side.Name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		if _, err := pool.Exec(ctx, `truncate river_job`); err != nil { // it keeps completed jobs
			return compare.Sample{}, err
		}
		return side.Run(ctx, window)
	}}
}
