package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestTxLock(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		c := open(t, server.URL())
		t.Run("lives as long as the transaction", func(t *testing.T) {
			x, y := c.mustBegin(t), c.mustBegin(t)
			mustTry(t, x, "a", true)
			mustTry(t, x, "a", true) // again
			mustTry(t, y, "a", false)
			mustTry(t, y, "b", true)
			if err := x.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			mustTry(t, y, "a", true)
			y.Rollback(t.Context())
			mustTry(t, c.mustBegin(t), "a", true)
		})
		t.Run("waits", func(t *testing.T) {
			x, y := c.mustBegin(t), c.mustBegin(t)
			mustTry(t, x, "w", true)
			done := make(chan error, 1)
			go func() { done <- postgres.TxLock(t.Context(), y, "w", 0) }()
			z := c.mustBegin(t)
			testbed.Eventually(t, "it waits in the server", bound, func() bool {
				return number(t, z, `select count(*) from pg_locks where locktype = 'advisory' and not granted`) == 1
			})
			x.Rollback(t.Context())
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
		t.Run("waits for so long", func(t *testing.T) {
			x, y := c.mustBegin(t), c.mustBegin(t)
			mustTry(t, x, "s", true)
			wantKind(t, postgres.TxLock(t.Context(), y, "s", 30*time.Millisecond), interlock.Retryable, "55P03")
			y = c.mustBegin(t)
			mustExec(t, y, `set local lock_timeout = '77s'`)
			if err := postgres.TxLock(t.Context(), y, "free", time.Second); err != nil {
				t.Fatal(err)
			}
			var after string
			err := y.Query(t.Context(), `select current_setting('lock_timeout')`, nil, func(scan func(...any) error) error { return scan(&after) })
			if err != nil || after != "77s" {
				t.Errorf("lock_timeout is %q afterwards (%v), before it was 77s", after, err)
			}
		})
		t.Run("names", func(t *testing.T) {
			x := c.mustBegin(t)
			for _, name := range []string{"", "a\x00b", "\xff", strings.Repeat("x", driver.MaxName+1)} {
				if _, err := postgres.TryTxLock(t.Context(), x, name); !errors.Is(err, interlock.ErrName) {
					t.Errorf("name %q: %v", name, err)
				}
			}
			wantKind(t, postgres.TxLock(t.Context(), x, "a", -1), interlock.Bug, "")
		})
	})
}

func mustTry(t *testing.T, x tx, name string, want bool) {
	t.Helper()
	got, err := postgres.TryTxLock(t.Context(), x, name)
	if err != nil || got != want {
		t.Fatalf("try %q: %v, %v", name, got, err)
	}
}

// A transaction and a session exclude each other on one name.
func TestTxLockExcludesSessions(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	c := openPgx(t, server.URL())
	d := mustOpen(t, server)
	x := c.mustBegin(t)
	mustTry(t, x, "shared", true)
	_, err := d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: "o1", NoWait: true})
	if !errors.Is(err, interlock.ErrHeld) {
		t.Fatalf("a session took what a transaction has: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: "o2"})
		done <- err
	}()
	x.Rollback(t.Context())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustTry(t, c.mustBegin(t), "shared", false)
}

type stdStranger struct{ driver.SQL }

func (stdStranger) Dialect() driver.Dialect { return driver.MariaDB }

func TestTxLockOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	_, err := postgres.TryTxLock(context.Background(), stdStranger{postgres.StdTx((*sql.Tx)(nil))}, "a")
	wantKind(t, err, interlock.Bug, "")
}

func mustOpen(t *testing.T, server *testbed.Server) *postgres.Driver {
	t.Helper()
	config, err := pgx.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	d, err := postgres.Open(t.Context(), config, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	return d
}
