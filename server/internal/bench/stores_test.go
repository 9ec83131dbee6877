package bench

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func ok(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// store is a system with a journal on it, and what it takes to commit the least that
// it can.
type store struct {
	name    string
	journal driver.Journal
	commit  func(ctx context.Context) error
}

// connections are as many as clients, so that nobody waits for one.
const connections = 90

// stores are started with everything on disk before it is acknowledged.
var stores = []func(tb testing.TB) store{onPostgres, onMariaDB, onEtcd}

func onPostgres(tb testing.TB) store {
	server := testbed.Postgres(tb, "-c", "fsync=on")
	config, err := pgxpool.ParseConfig(server.URL())
	ok(tb, err)
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	ok(tb, err)
	tb.Cleanup(pool.Close)
	_, err = pool.Exec(tb.Context(), `create table one (id bigint primary key, text varchar(200))`)
	ok(tb, err)
	var id atomic.Int64
	return store{"Postgres", table(tb, postgres.Pool(pool)), func(ctx context.Context) error {
		_, err := pool.Exec(ctx, `insert into one values ($1, $2)`, id.Add(1), filler)
		return err
	}}
}

func onMariaDB(tb testing.TB) store {
	server := testbed.MariaDB(tb, "--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1")
	db, err := sql.Open("mysql", server.URL())
	ok(tb, err)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	tb.Cleanup(func() { ok(tb, db.Close()) })
	_, err = db.ExecContext(tb.Context(), `create table one (id bigint primary key, text varchar(200)) engine = InnoDB`)
	ok(tb, err)
	var id atomic.Int64
	return store{"MariaDB", table(tb, mysql.DB(db)), func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, `insert into one values (?, ?)`, id.Add(1), filler)
		return err
	}}
}

func onEtcd(tb testing.TB) store {
	server := testbed.Etcd(tb)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL()}, Logger: zap.NewNop()})
	ok(tb, err)
	tb.Cleanup(func() { ok(tb, client.Close()) })
	var id atomic.Int64
	return store{"etcd", etcd.NewJournal(client, "bench/"), func(ctx context.Context) error {
		_, err := client.Put(ctx, fmt.Sprintf("one/%d", id.Add(1)), filler)
		return err
	}}
}

// filler is about as long as a record.
const filler = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"

// table is a journal in a database.
func table[T any](tb testing.TB, db driver.BeginnerAt[T]) driver.Journal {
	tb.Helper()
	t := journal.NewTable(db, "")
	tx, err := db.Begin(tb.Context())
	ok(tb, err)
	ok(tb, t.Create(tb.Context(), tx))
	ok(tb, tx.Commit(tb.Context()))
	return t
}

// serve drives the sagas of a store, all shards, until the test ends.
func serve(t *testing.T, s store, o *coordinator.Options, hooks *observe.Saga, sagas ...saga.Defined) *saga.Engine {
	t.Helper()
	j, err := journal.New(s.journal, &journal.Options{Shards: 8})
	ok(t, err)
	c, err := coordinator.New(j, o)
	ok(t, err)
	e, err := saga.New(c, &saga.Options{Hooks: hooks}, sagas...)
	ok(t, err)
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	ok(t, err)
	claim, err := locks.Acquire(t.Context(), "sagas")
	ok(t, err)
	served := make(chan error, 1)
	go func() { served <- c.Run(context.Background(), claim) }()
	t.Cleanup(func() {
		ctx := context.Background()
		ok(t, claim.Release(ctx))
		<-served
		ok(t, locks.Close(ctx))
		ok(t, d.Close(ctx))
		ok(t, j.Close())
	})
	return e
}
