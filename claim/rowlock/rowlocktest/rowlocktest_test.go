package rowlocktest_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/claim/rowlock/rowlocktest"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// recorder is a test that records failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// TestRemoteCallsInsideAScope makes calls outside a scope, inside with its
// context, and inside without.
func TestRemoteCallsInsideAScope(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), testbed.Postgres(t).URL())
	testbed.OK(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), "create table account (id text primary key); insert into account values ('a')")
	testbed.OK(t, err)
	remote := httptest.NewServer(http.NotFoundHandler())
	defer remote.Close()
	r := &recorder{TB: t}
	base := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: rowlocktest.Transport(r, base)}
	dial := rowlocktest.Dial(r, new(net.Dialer).DialContext)

	call := func(ctx context.Context, want int) {
		t.Helper()
		r.failures = nil
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, remote.URL, nil)
		testbed.OK(t, err)
		if resp, err := client.Do(req); err != nil {
			t.Error(err)
		} else {
			resp.Body.Close()
		}
		if conn, err := dial(ctx, "tcp", remote.Listener.Addr().String()); err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		if len(r.failures) != want {
			t.Errorf("failures: %q, want %d", r.failures, want)
		}
	}
	call(t.Context(), 0)
	err = rowlock.Tx(t.Context(), postgres.Pool(pool), rowlock.Rows{Table: "account", Key: "id"}, []string{"a"}, nil,
		func(ctx context.Context, _ pgx.Tx, _ []string) error {
			call(ctx, 2)
			call(context.WithoutCancel(t.Context()), 2)
			rowlocktest.Check(t, t.Context(), "a call that has nothing to do with the scope")
			return nil
		})
	if err != nil {
		t.Error(err)
	}
	call(t.Context(), 0)
}
