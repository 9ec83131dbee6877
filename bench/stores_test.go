package bench

import (
	"context"
	"fmt"
	"testing"

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

// sagaConnections is the pool size of sides that run sagas, or commits for comparison.
const sagaConnections = 64

// journaled is a store with a journal, and its minimal commit.
type journaled struct {
	journal driver.Journal
	commit  func(ctx context.Context) error
}

// startPostgres starts a server with enough connections for a pool per side.
func startPostgres(tb testing.TB) *testbed.Server {
	return testbed.Postgres(tb, "-c", "fsync=on", "-c", "max_connections=400")
}

// onPostgres creates another journal at each call.
func onPostgres(tb testing.TB, server *testbed.Server) journaled {
	pool := poolOf(tb, server, sagaConnections)
	return journaled{table(tb, postgres.Pool(pool)), postgresCommit(tb, poolOf(tb, server, sagaConnections))}
}

func onMariaDB(tb testing.TB, server *testbed.Server) journaled {
	db := mariadbPool(tb, server, sagaConnections)
	return journaled{table(tb, mysql.DB(db)), mariadbCommit(tb, mariadbPool(tb, server, sagaConnections))}
}

func onEtcd(tb testing.TB, server *testbed.Server) journaled {
	client := dialEtcd(tb, server)
	return journaled{etcd.NewJournal(client, fmt.Sprintf("bench/%d/", fresh.Add(1))), func(ctx context.Context) error {
		_, err := client.Put(ctx, fmt.Sprintf("one/%d", fresh.Add(1)), filler)
		return err
	}}
}

// table creates a journal in a database.
func table[T any](tb testing.TB, db driver.BeginnerAt[T]) driver.Journal {
	t := journal.NewTable(db, fmt.Sprint("journal", fresh.Add(1)))
	tx, err := db.Begin(tb.Context())
	ok(tb, err)
	ok(tb, t.Create(tb.Context(), tx))
	ok(tb, tx.Commit(tb.Context()))
	return t
}

// serve drives the sagas of all shards of a journal until the case ends.
func serve(tb testing.TB, store driver.Journal, o *coordinator.Options, hooks *observe.Saga, sagas ...saga.Defined) *saga.Engine {
	j, err := journal.New(store, &journal.Options{Shards: 8})
	ok(tb, err)
	c, err := coordinator.New(j, o)
	ok(tb, err)
	e, err := saga.New(c, &saga.Options{Hooks: hooks}, sagas...)
	ok(tb, err)
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	ok(tb, err)
	claim, err := locks.Acquire(tb.Context(), "sagas")
	ok(tb, err)
	served := make(chan error, 1)
	go func() { served <- c.Run(context.Background(), claim) }()
	tb.Cleanup(func() {
		ctx := context.Background()
		ok(tb, claim.Release(ctx))
		<-served
		ok(tb, locks.Close(ctx))
		ok(tb, d.Close(ctx))
		ok(tb, j.Close())
	})
	return e
}

// withPool returns the URL of a database with a pool size.
func withPool(server *testbed.Server) string {
	return server.URL() + "&pool_max_conns=" + fmt.Sprint(sagaConnections)
}
