package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestCommitDoneAndConnectionClosed loses the answer to a COMMIT that was done,
// by closing the connection. The client then calls the error safe to retry.
func TestCommitDoneAndConnectionClosed(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		admin := openPgx(t, server.URL())
		admin.do(t, `drop table if exists done`, `create table done (k int)`)
		proxy := testbed.NewProxy(t, server.Addr())
		x := open(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1)).mustBegin(t)
		mustExec(t, x, `insert into done values (1)`)
		proxy.CutAfter(0)
		err := x.Commit(t.Context())
		wantKind(t, err, interlock.Uncertain, "")
		t.Logf("safe to retry, says the client: %v (%v)", pgconn.SafeToRetry(err), err)
		testbed.Eventually(t, "the commit is done", bound, func() bool {
			y := admin.mustBegin(t)
			defer y.Rollback(t.Context())
			return number(t, y, `select count(*) from done`) == 1
		})
	})
}

// TestCommitOnAClosedConnection commits what cannot be sent any more: pgx shows
// that it is so, database/sql does not.
func TestCommitOnAClosedConnection(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	for name, tt := range map[string]struct {
		open func(*testing.T, string) client
		want interlock.ErrorKind
	}{
		"pgx":          {openPgx, interlock.Retryable},
		"database-sql": {openStd, interlock.Uncertain},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := testbed.NewProxy(t, server.Addr())
			x := tt.open(t, strings.Replace(server.URL(), server.Addr(), proxy.Addr(), 1)).mustBegin(t)
			proxy.CutAfter(0)
			if _, err := x.Exec(t.Context(), `select 1`); err == nil {
				t.Fatal("the connection was not cut")
			}
			wantKind(t, x.Commit(t.Context()), tt.want, "")
		})
	}
}
