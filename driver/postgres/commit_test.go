package postgres_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
