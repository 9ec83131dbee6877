package river_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	upstream "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/river"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

var (
	inbox  = once.Inbox{Consumer: "jobs"}
	silent = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// prepared is a database with the tables of River and the inbox.
func prepared(t *testing.T, server *testbed.Server) *databases.DB {
	db := databases.Open(t, server, databases.Pgx)
	db.Do(t, inbox.Create)
	migrator, err := rivermigrate.New(riverpgxv5.New(poolAt(t, db.URL)), &rivermigrate.Config{Logger: silent})
	ok(t, err)
	_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	ok(t, err)
	return db
}

func poolAt(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func sinkOn(t *testing.T, pool *pgxpool.Pool, o *river.Options) *river.Sink[pgx.Tx] {
	t.Helper()
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{Logger: silent})
	ok(t, err)
	return river.NewSink(client, postgres.Pool(pool), inbox, o)
}

func TestSinkSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.SinkBackend {
			server := testbed.Shared(t, testbed.Postgres)
			if exclusive {
				server = testbed.Postgres(t)
			}
			db := prepared(t, server)
			to, err := url.Parse(db.URL)
			ok(t, err)
			return paths.At(server, func(t *testing.T, addr string) (drivertest.KeptSink, error) {
				by := *to
				by.Host = addr
				pool := poolAt(t, by.String())
				return &kept{sinkOn(t, pool, nil), pool}, nil
			})
		},
		Without: drivertest.LostReplies, // without the answer to BEGIN there is no COMMIT; see TestLostCommit
	})
}

// TestLostCommit: messages whose commit had no answer are of unknown outcome, and sent again they insert
// no second job.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	db := prepared(t, testbed.Shared(t, testbed.Postgres))
	pool := poolAt(t, db.URL)
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{Logger: silent})
	ok(t, err)
	lossy := databases.Unanswered(postgres.Pool(pool), func() bool { return true })
	messages := []driver.Message{{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t", Key: "k"}, {ID: "3", Topic: "t"}}
	for _, err := range river.NewSink(client, lossy, inbox, nil).Publish(t.Context(), messages) {
		if err == nil || interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("%v", err)
		}
	}
	ok(t, drivertest.PublishAll(t.Context(), sinkOn(t, pool, nil), messages))
	if n := databases.One[int64](t, db, `select count(*) from river_job`); n != 3 {
		t.Errorf("%d jobs", n)
	}
}

// kept makes JSON of payloads, ids unique beyond their topic, and reads the jobs.
type kept struct {
	*river.Sink[pgx.Tx]
	pool *pgxpool.Pool
}

func (k *kept) Publish(ctx context.Context, messages []driver.Message) []error {
	all := make([]driver.Message, len(messages))
	for i, m := range messages {
		if m.Payload != nil {
			m.Payload, _ = json.Marshal(m.Payload)
		}
		if m.ID != "" {
			m.ID = url.PathEscape(m.Topic) + "/" + m.ID
			m.ID = m.ID[max(0, len(m.ID)-255):]
		}
		all[i] = m
	}
	return k.Sink.Publish(ctx, all)
}

func (k *kept) Kept(ctx context.Context, topic string) ([]driver.Message, error) {
	rows, err := k.pool.Query(ctx, `select args, metadata->'interlock' from river_job where kind = $1 order by id`, topic)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m driver.Message, err error) {
		var args, metadata []byte
		var about river.Metadata
		err = errors.Join(row.Scan(&args, &metadata), json.Unmarshal(metadata, &about))
		m = driver.Message{Topic: topic, Headers: about.Headers}
		id, _ := url.PathUnescape(about.ID)
		_, m.ID, _ = strings.Cut(id, "/")
		m.Key, _ = url.PathUnescape(about.Key)
		if string(args) != "{}" {
			err = errors.Join(err, json.Unmarshal(args, &m.Payload))
		}
		return m, err
	})
}

// order is the args of a job.
type order struct {
	Item string `json:"item"`
}

func (order) Kind() string { return "ship" }

// TestOutbox: a committed message is a job, which a worker does; one that the relay sends again is not
// a second job, and one that cannot be a job is refused alone.
func TestOutbox(t *testing.T) {
	t.Parallel()
	db := prepared(t, testbed.Shared(t, testbed.Postgres))
	pool := poolAt(t, db.URL)
	shop := databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx)
	shop.Do(t, outbox.Table{}.Create)
	shop.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return outbox.Table{}.Add(ctx, tx, outbox.Message{ID: "order-7", Topic: "ship", Key: "order/7", Headers: map[string]string{"h": "v"}, Payload: []byte(`{"item":"book"}`)})
	})
	sink := sinkOn(t, pool, &river.Options{Insert: func(m driver.Message) *upstream.InsertOpts {
		return &upstream.InsertOpts{Queue: "shipping", Priority: 2}
	}})
	relay, err := outbox.Start(t.Context(), shop.URL, outbox.Table{}, sink, nil)
	ok(t, err)
	defer func() { _ = relay.Close(context.WithoutCancel(t.Context())) }()
	done := make(chan *upstream.Job[order], 10)
	workers := upstream.NewWorkers()
	upstream.AddWorker(workers, upstream.WorkFunc(func(_ context.Context, j *upstream.Job[order]) error {
		done <- j
		return nil
	}))
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{Logger: silent, Workers: workers, FetchPollInterval: 10 * time.Millisecond,
		FetchCooldown: 5 * time.Millisecond, Queues: map[string]upstream.QueueConfig{"shipping": {MaxWorkers: 5}}})
	ok(t, err)
	ok(t, client.Start(t.Context()))
	defer func() { _ = client.Stop(context.WithoutCancel(t.Context())) }()
	select {
	case j := <-done:
		var metadata map[string]river.Metadata
		if err := json.Unmarshal(j.Metadata, &metadata); err != nil || j.Args.Item != "book" || j.Priority != 2 || metadata["interlock"].ID != "order-7" || metadata["interlock"].Headers["h"] != "v" {
			t.Errorf("%+v, %v", j, err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no job was done")
	}
	again := driver.Message{ID: "order-7", Topic: "ship", Payload: []byte(`{"item":"book"}`)}
	other := driver.Message{ID: "order-7", Topic: "ship", Payload: []byte(`{"item":"pen"}`)}
	long := driver.Message{ID: "order-8", Topic: string(bytes.Repeat([]byte("x"), 200))} // River's kinds have 128 bytes
	answers := sink.Publish(t.Context(), []driver.Message{again, {ID: "order-9", Topic: "ship", Payload: []byte("{")}, {ID: "order-10", Topic: "ship"}, long})
	for i, want := range []interlock.ErrorKind{0, interlock.Definite, 0, interlock.Definite} {
		if (answers[i] != nil) != (want != 0) || want != 0 && interlock.Kind(answers[i]) != want {
			t.Errorf("message %d: %v", i, answers[i])
		}
	}
	if err := sink.Publish(t.Context(), []driver.Message{other})[0]; err == nil || interlock.Kind(err) != interlock.Definite {
		t.Errorf("another message of the id: %v", err)
	}
	if n := databases.One[int64](t, db, `select count(*) from river_job`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// TestRefusedByClient: a job that River refuses before it asks the database stops no other one.
func TestRefusedByClient(t *testing.T) {
	t.Parallel()
	db := prepared(t, testbed.Shared(t, testbed.Postgres))
	sink := sinkOn(t, poolAt(t, db.URL), &river.Options{Insert: func(m driver.Message) *upstream.InsertOpts {
		return &upstream.InsertOpts{Priority: map[string]int{"bad": 9}[m.Topic]} // 1 to 4, or 0
	}})
	answers := sink.Publish(t.Context(), []driver.Message{{ID: "1", Topic: "good"}, {ID: "2", Topic: "bad", Key: "k"}, {ID: "3", Topic: "bad", Key: "k"}, {ID: "4", Topic: "good", Key: "k"}})
	if answers[0] != nil || interlock.Kind(answers[1]) != interlock.Retryable || answers[1] == nil || answers[2] != driver.ErrNotSent || answers[3] != nil {
		t.Errorf("%v", answers)
	}
	if n := databases.One[int64](t, db, `select count(*) from river_job`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

// TestMissingTable: a table or a right that is missing is a problem of the sink, so that no message becomes
// a dead letter. Once it is there, the messages are delivered.
func TestMissingTable(t *testing.T) {
	t.Parallel()
	db := prepared(t, testbed.Shared(t, testbed.Postgres))
	sink := sinkOn(t, poolAt(t, db.URL), nil)
	messages := []driver.Message{{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t"}}
	for _, change := range [][2]string{
		{`alter table river_job rename to other`, `alter table other rename to river_job`},
		{`alter table river_job rename column args to other`, `alter table river_job rename column other to args`},
		{`alter table interlock_inbox rename to other`, `alter table other rename to interlock_inbox`},
	} {
		db.Do(t, execute(change[0]))
		for i, err := range sink.Publish(t.Context(), messages) {
			if err == nil || interlock.Kind(err) != interlock.Retryable {
				t.Errorf("%s: message %d: %v", change[0], i, err)
			}
		}
		db.Do(t, execute(change[1]))
	}
	ok(t, drivertest.PublishAll(t.Context(), sink, messages))
}

func execute(statement string) func(context.Context, driver.SQL) error {
	return func(ctx context.Context, tx driver.SQL) error {
		_, err := tx.Exec(ctx, statement)
		return err
	}
}
