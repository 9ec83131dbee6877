package bench

import (
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaConnections is the pool size of sides that run transactions, or commits for comparison.
const sagaConnections = 64

// onPostgres creates another journal at each call, and returns the store's minimal commit.
func onPostgres(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	return table(tb, postgres.Pool(poolOf(tb, server, sagaConnections))), postgresCommit(tb, poolOf(tb, server, sagaConnections))
}

func onMariaDB(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	return table(tb, mysql.DB(mariadbPool(tb, server, sagaConnections))), mariadbCommit(tb, mariadbPool(tb, server, sagaConnections))
}

func onEtcd(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	client := dialEtcd(tb, server)
	return etcd.NewJournal(client, fmt.Sprintf("bench/%d/", fresh.Add(1))), etcdCommit(client)
}

// table creates a journal in a database.
func table[T any](tb testing.TB, db driver.BeginnerAt[T]) driver.Journal {
	t := journal.NewTable(db, fmt.Sprint("journal", fresh.Add(1)))
	ok(tb, driver.Create(tb.Context(), db, t))
	return t
}

// serve drives the sagas of all shards of a journal until the case ends.
func serve(tb testing.TB, store driver.Journal, o *coordinator.Options, hooks *observe.Saga, sagas ...saga.Defined) (e *saga.Engine) {
	locks := memory.NewSpace().Open(nil)
	closeAfter(tb, locks.Close)
	rt, err := txn.New(tb.Context(), store, locks, nil, &txn.Options{Shards: 8, Coordinator: o})
	ok(tb, err)
	start(tb, rt, func(c *coordinator.Coordinator) (err error) {
		e, err = saga.New(c, &saga.Options{Hooks: hooks}, sagas...)
		return err
	})
	return e
}

// start starts a coordinator, after create has created engines on it.
func start(tb testing.TB, rt *txn.Runtime, create func(*coordinator.Coordinator) error) {
	closeAfter(tb, rt.Close)
	ok(tb, create(rt.Coordinator()))
	ok(tb, rt.Start(tb.Context()))
}

func openRuntime(tb testing.TB, url string, o *txn.Options) *txn.Runtime {
	rt, err := txn.Open(tb.Context(), url, o)
	ok(tb, err)
	return rt
}

// withPool returns the URL of a database with a pool size.
func withPool(server *testbed.Server) string {
	return server.URL() + "&pool_max_conns=" + fmt.Sprint(sagaConnections)
}
