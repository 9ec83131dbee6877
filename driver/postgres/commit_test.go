package postgres_test

import (
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestCommitOnAClosedConnection commits what cannot be sent any more: pgx shows
// that it is so, database/sql does not.
func TestCommitOnAClosedConnection(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		proxy := testbed.NewProxy(t, db.Server.Addr())
		x := begun(t, db.Through(t, proxy))
		proxy.CutAfter(0)
		if _, err := x.Exec(t.Context(), `select 1`); err == nil {
			t.Fatal("the connection was not cut")
		}
		want := map[string]interlock.ErrorKind{databases.Pgx: interlock.Retryable, databases.PgxStd: interlock.Uncertain}[db.Client]
		wantKind(t, x.Commit(t.Context()), want, "")
	})
}
