package transact_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// bound limits the wait for a condition.
const bound = 20 * time.Second

// TestClients tests the transactions of each client of each database.
func TestClients(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range map[string]func(*testing.T, *databases.DB){
			"Statements":                  testStatements,
			"LostCommit":                  testLostCommit,
			"CommitOnALostConnection":     testCutCommit,
			"Begin":                       testBegin,
			"RollbackIgnoresCancellation": testRollbackIgnoresCancellation,
			"RollbackIsBounded":           testRollbackIsBounded,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := open(t)
				db.Exec(t, `create table kept (k varchar(9) primary key, v bigint)`)
				test(t, db)
			})
		}
	}, databases.All...)
}

// rows returns the number of committed rows.
func rows(t *testing.T, db *databases.DB) int64 {
	t.Helper()
	return databases.One[int64](t, db, `select count(*) from kept`)
}

// far returns db with connections through a proxy.
func far(t *testing.T, db *databases.DB) (*databases.DB, *testbed.Proxy) {
	t.Helper()
	proxy := testbed.NewProxy(t, db.Server.Addr())
	far := db.Through(t, proxy)
	t.Cleanup(proxy.Heal) // a client may wait for the end of its connection
	return far, proxy
}

func exec(t *testing.T, tx driver.SQL, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := tx.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func testStatements(t *testing.T, db *databases.DB) {
	tx := db.Begun(t, driver.SessionIsolation)
	if tx.Dialect() != db.Dialect {
		t.Errorf("dialect %q", tx.Dialect())
	}
	n, err := tx.Exec(t.Context(), `insert into kept values ('k1', 1), ('k2', 2), ('k3', 3), ('k4', 4), ('k5', 5)`)
	if err != nil || n != 5 {
		t.Fatalf("inserted %d, %v", n, err)
	}
	var got []string
	stop := errors.New("stop")
	parameter := map[driver.Dialect]string{driver.Postgres: "$1", driver.MariaDB: "?"}[db.Dialect]
	err = tx.Query(t.Context(), `select k, v from kept where v >= `+parameter+` order by v`, []any{int64(2)}, func(scan func(...any) error) error {
		var k string
		var v int64
		if err := scan(&k, &v); err != nil {
			return err
		}
		if got = append(got, fmt.Sprint(k, v)); len(got) == 3 {
			return stop
		}
		return nil
	})
	if err != stop || fmt.Sprint(got) != "[k22 k33 k44]" {
		t.Errorf("read %v, %v", got, err)
	}
	for range 2 { // the second one does nothing
		testbed.OK(t, tx.Rollback(t.Context()))
	}
	if n := rows(t, db); n != 0 {
		t.Errorf("%d rows after a rollback", n)
	}
	tx = db.Begun(t, driver.SessionIsolation)
	exec(t, tx, `insert into kept values ('a', 1)`)
	testbed.OK(t, tx.Commit(t.Context()))
	testbed.OK(t, tx.Rollback(t.Context()))
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("committed twice")
	}
	_, err = tx.Exec(t.Context(), `select 1`)
	testbed.WantKind(t, err, interlock.Definite, nil)
	if n := rows(t, db); n != 1 {
		t.Errorf("%d rows after a commit", n)
	}
}

// testLostCommit loses the reply to a successful COMMIT, also of a bounded transaction.
func testLostCommit(t *testing.T, db *databases.DB) {
	for i, bind := range []bool{false, true} {
		client, proxy := far(t, db)
		tx := client.Begun(t, driver.SessionIsolation)
		if bind {
			testbed.OK(t, tx.Bound(t.Context(), bound, bound))
		}
		exec(t, tx, fmt.Sprintf(`insert into kept values ('%d', 1)`, i))
		proxy.DropReplies()
		ctx, cancel := context.WithCancelCause(t.Context())
		answer := testbed.Later(t, bound, func() error { return tx.Commit(ctx) })
		testbed.Eventually(t, "the commit arrives", bound, func() bool { return rows(t, db) == int64(i+1) })
		gaveUp := errors.New("gave up")
		cancel(gaveUp)
		err := answer()
		testbed.WantKind(t, err, interlock.Uncertain, gaveUp)
		testbed.WantKind(t, err, interlock.Uncertain, interlock.ErrUncertain)
	}
}

// testCutCommit closes the connection after a COMMIT was sent. pgx then calls the error safe to
// retry.
func testCutCommit(t *testing.T, db *databases.DB) {
	client, proxy := far(t, db)
	tx := client.Begun(t, driver.SessionIsolation)
	exec(t, tx, `insert into kept values ('a', 1)`)
	proxy.CutAfter(0)
	testbed.WantKind(t, tx.Commit(t.Context()), interlock.Uncertain, nil)
	testbed.Eventually(t, "the commit is done", bound, func() bool { return rows(t, db) == 1 })
}

func testBegin(t *testing.T, db *databases.DB) {
	client, proxy := far(t, db)
	ended := errors.New("ended before")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	_, err := client.Begin(ctx)
	testbed.WantKind(t, err, interlock.Definite, ended)
	proxy.Cut()
	_, err = client.Begin(t.Context())
	testbed.WantKind(t, err, interlock.Retryable, nil)
	name := strings.FieldsFunc(db.URL[strings.LastIndex(db.URL, "/")+1:], func(r rune) bool { return r == '?' })[0]
	nowhere, closed, err := databases.Connect(t.Context(), db.Client, strings.Replace(db.URL, "/"+name, "/nowhere", 1))
	testbed.OK(t, err)
	t.Cleanup(closed)
	_, err = nowhere.Begin(t.Context())
	testbed.WantKind(t, err, interlock.Definite, nil)
}

func testRollbackIgnoresCancellation(t *testing.T, db *databases.DB) {
	const lock = `select * from kept where k = 'a' for update`
	db.Exec(t, `insert into kept values ('a', 1)`)
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := db.Begin(ctx)
	testbed.OK(t, err)
	exec(t, tx, lock)
	cancel()
	if err := tx.Rollback(ctx); err != nil && db.Client != databases.PgxStd { // where database/sql rolls back itself
		t.Error(err)
	}
	testbed.Eventually(t, "the row is free", bound, func() bool { // database/sql rolls back in the background
		return db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { _, err := tx.Exec(ctx, lock+` nowait`); return err }) == nil
	})
}

func testRollbackIsBounded(t *testing.T, db *databases.DB) {
	client, proxy := far(t, db)
	tx := client.Begun(t, driver.SessionIsolation)
	proxy.Cut()
	if err := tx.Rollback(t.Context()); err == nil {
		t.Error("rolled back over a path that is cut")
	}
	proxy.Heal()
	testbed.Eventually(t, "the pool has no broken connection", bound, func() bool {
		return client.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { return nil }) == nil
	})
}
