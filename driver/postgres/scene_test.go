package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var owners atomic.Int64

func newOwner() string { return fmt.Sprint("test/", owners.Add(1)) }

// openOn opens a driver that is closed with the test.
func openOn(t testing.TB, addr string, ttl time.Duration) *Driver {
	t.Helper()
	d, err := Open(t.Context(), configOf(t, urlAt(addr)), &Options{TTL: ttl})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

// grantOf is what an Acquire gave.
type grantOf struct {
	owner string
	grant driver.Grant
	lost  chan error
	err   error
}

// hold acquires and gives everything.
func hold(t testing.TB, d driver.Fenced, name string) grantOf {
	t.Helper()
	g := attempt(testbed.Bounded(t), d, name, driver.Request{})
	testbed.OK(t, g.err)
	return g
}

func attempt(ctx context.Context, d driver.Fenced, name string, r driver.Request) grantOf {
	g := grantOf{owner: newOwner(), lost: make(chan error, 10)}
	r.Name, r.Owner = name, g.owner
	r.Events.Lost = func(cause error) { g.lost <- cause }
	g.grant, g.err = d.Acquire(ctx, r)
	return g
}

// take acquires, and gives the owner.
func take(t testing.TB, d driver.Fenced, name string) string {
	t.Helper()
	return hold(t, d, name).owner
}

func give(t testing.TB, d driver.Fenced, name, owner string) {
	t.Helper()
	testbed.OK(t, d.Release(testbed.Bounded(t), name, owner))
}

// refuse requires that another holds name.
func refuse(t testing.TB, d driver.Fenced, name string) *interlock.HeldError {
	t.Helper()
	g := attempt(t.Context(), d, name, driver.Request{NoWait: true})
	var held *interlock.HeldError
	if !errors.As(g.err, &held) {
		t.Fatalf("acquire %q, which is held: %v", name, g.err)
	}
	return held
}

// await acquires in the background, and returns when it waits.
func await(t testing.TB, d driver.Fenced, name string) <-chan grantOf {
	t.Helper()
	waits, done := make(chan struct{}, 1), make(chan grantOf, 1)
	r := driver.Request{Events: driver.Events{Waiting: func(driver.Place) { hints.Signal(waits) }}}
	go func() { done <- attempt(t.Context(), d, name, r) }()
	testbed.Receive(t, waits, "a place of "+name)
	return done
}

// EmptyServer returns a server for this test alone, which must leave it running. The next test has
// the same one, because a start takes a tenth of a second of processor time. With extra arguments it
// is a new one.
func EmptyServer(tb testing.TB, extra ...string) *testbed.Server {
	tb.Helper()
	if len(extra) > 0 {
		return testbed.Postgres(tb, extra...)
	}
	return testbed.Borrowed(tb, testbed.Postgres, func(s *testbed.Server) { empty(tb, s) })
}

// empty ends all sessions, and replaces the databases.
func empty(tb testing.TB, s *testbed.Server) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testbed.Patience)
	defer cancel()
	admin := connectTo(ctx, tb, s, "template1")
	testbed.Eventually(tb, "all sessions end", testbed.Patience, func() bool {
		return len(column(ctx, tb, admin, `select pg_terminate_backend(pid)::text from pg_stat_activity
			where pid <> pg_backend_pid() and backend_type = 'client backend'`)) == 0
	})
	for _, database := range column(ctx, tb, admin, `select distinct database::text from pg_prepared_xacts`) {
		inside := connectTo(ctx, tb, s, database)
		for _, statement := range column(ctx, tb, inside, `select format('rollback prepared %L', gid) from pg_prepared_xacts where database = current_database()`) {
			_, err := inside.Exec(ctx, statement)
			testbed.OK(tb, err)
		}
		testbed.OK(tb, inside.Close(ctx))
	}
	for _, statement := range append(column(ctx, tb, admin, `
		select format('drop database %I with (force)', datname) from pg_database where not datistemplate
		union all select format('drop role %I', rolname) from pg_roles where rolname <> 'postgres' and rolname not like 'pg\_%'`),
		`create database postgres template template0`) {
		_, err := admin.Exec(ctx, statement)
		testbed.OK(tb, err)
	}
	testbed.OK(tb, admin.Close(ctx))
}

func connectTo(ctx context.Context, tb testing.TB, s *testbed.Server, database string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(ctx, strings.Replace(s.URL(), "/postgres?", "/"+database+"?", 1))
	testbed.OK(tb, err)
	return conn
}

func column(ctx context.Context, tb testing.TB, conn *pgx.Conn, query string) []string {
	tb.Helper()
	rows, err := conn.Query(ctx, query)
	testbed.OK(tb, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	testbed.OK(tb, err)
	return all
}
