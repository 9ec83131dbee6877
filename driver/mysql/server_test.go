package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// mariaDB returns an empty server for this test alone, which must leave it running. The next test
// has the same one, because a start takes half a second of processor time. With extra arguments it is
// a new one.
func mariaDB(tb testing.TB, extra ...string) *testbed.Server {
	tb.Helper()
	if len(extra) > 0 {
		return testbed.MariaDB(tb, extra...)
	}
	return testbed.Borrowed(tb, testbed.MariaDB, func(s *testbed.Server) { empty(tb, s) })
}

// empty ends all sessions, and removes what they left.
func empty(tb testing.TB, s *testbed.Server) {
	tb.Helper()
	admin := open(tb, strings.TrimSuffix(s.URL(), "test"))
	defer admin.Close()
	admin.SetMaxOpenConns(1)
	testbed.Eventually(tb, "all sessions end", bound, func() bool {
		sessions := admin.column(tb, `select id from information_schema.processlist where id <> connection_id() and user <> 'system user'`)
		for _, id := range sessions {
			_, _ = admin.ExecContext(context.Background(), "kill "+id) // it may have ended
		}
		return len(sessions) == 0
	})
	for _, left := range []struct{ remove, objects string }{
		{"xa rollback %s", `xa recover format='SQL'`},
		{"drop user %s", `select concat(quote(user), '@', quote(host)) from mysql.user where user not in ('root', 'mariadb.sys', 'mysql', 'PUBLIC', '')`},
		{"set global %s = default", `select variable_name from information_schema.system_variables where global_value_origin = 'SQL'`},
		{"drop database `%s`", `select schema_name from information_schema.schemata
			where schema_name not in ('mysql', 'information_schema', 'performance_schema', 'sys')`},
	} {
		for _, object := range admin.column(tb, left.objects) {
			admin.do(tb, fmt.Sprintf(left.remove, object))
		}
	}
	admin.do(tb, "create database test")
}

// column returns the last column of a query.
func (d database) column(tb testing.TB, query string) (all []string) {
	tb.Helper()
	rows, err := d.QueryContext(context.Background(), query)
	testbed.OK(tb, err)
	defer rows.Close()
	names, err := rows.Columns()
	testbed.OK(tb, err)
	values := make([]any, len(names))
	for i := range values {
		values[i] = new(string)
	}
	for rows.Next() {
		testbed.OK(tb, rows.Scan(values...))
		all = append(all, *values[len(values)-1].(*string))
	}
	testbed.OK(tb, rows.Err())
	return all
}
