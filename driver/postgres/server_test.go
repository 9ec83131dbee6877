package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
)

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
