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
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestTxLock(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		t.Run("lives as long as the transaction", func(t *testing.T) {
			x, y := begun(t, db), begun(t, db)
			mustTry(t, x, "a", true)
			mustTry(t, x, "a", true) // again
			mustTry(t, y, "a", false)
			mustTry(t, y, "b", true)
			testbed.OK(t, x.Commit(t.Context()))
			mustTry(t, y, "a", true)
			y.Rollback(t.Context())
			mustTry(t, begun(t, db), "a", true)
		})
		t.Run("waits", func(t *testing.T) {
			x, y := begun(t, db), begun(t, db)
			mustTry(t, x, "w", true)
			done := make(chan error, 1)
			go func() { done <- postgres.TxLock(t.Context(), y, "w", 0) }()
			testbed.Eventually(t, "it waits in the server", bound, func() bool { return db.Waiting(t) == 1 })
			x.Rollback(t.Context())
			testbed.OK(t, <-done)
		})
		t.Run("waits for so long", func(t *testing.T) {
			x, y := begun(t, db), begun(t, db)
			mustTry(t, x, "s", true)
			wantKind(t, postgres.TxLock(t.Context(), y, "s", 30*time.Millisecond), interlock.Retryable, "55P03")
			y = begun(t, db)
			mustExec(t, y, `set local lock_timeout = '77s'`)
			testbed.OK(t, postgres.TxLock(t.Context(), y, "free", time.Second))
			after, err := databases.Value[string](t.Context(), y, `select current_setting('lock_timeout')`)
			if err != nil || after != "77s" {
				t.Errorf("lock_timeout is %q afterwards (%v), before it was 77s", after, err)
			}
		})
		t.Run("names", func(t *testing.T) {
			x := begun(t, db)
			for _, name := range []string{"", "a\x00b", "\xff", strings.Repeat("x", driver.MaxName+1)} {
				if _, err := postgres.TryTxLock(t.Context(), x, name); !errors.Is(err, interlock.ErrName) {
					t.Errorf("name %q: %v", name, err)
				}
			}
			wantKind(t, postgres.TxLock(t.Context(), x, "a", -1), interlock.Bug, "")
		})
	})
}

func mustTry(t *testing.T, x driver.SQL, name string, want bool) {
	t.Helper()
	got, err := postgres.TryTxLock(t.Context(), x, name)
	if err != nil || got != want {
		t.Fatalf("try %q: %v, %v", name, got, err)
	}
}

// A transaction and a session exclude each other on one name.
func TestTxLockExcludesSessions(t *testing.T) {
	t.Parallel()
	db := databases.Open(t, postgres.EmptyServer(t), databases.Pgx)
	config, err := pgx.ParseConfig(db.URL)
	testbed.OK(t, err)
	d, err := postgres.Open(t.Context(), config, nil)
	testbed.OK(t, err)
	defer d.Close(context.Background())
	x := begun(t, db)
	mustTry(t, x, "shared", true)
	_, err = d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: "o1", NoWait: true})
	if !errors.Is(err, interlock.ErrHeld) {
		t.Fatalf("a session took what a transaction has: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), driver.Request{Name: "shared", Owner: "o2"})
		done <- err
	}()
	x.Rollback(t.Context())
	testbed.OK(t, <-done)
	mustTry(t, begun(t, db), "shared", false)
}

type stdStranger struct{ driver.SQL }

func (stdStranger) Dialect() driver.Dialect { return driver.MariaDB }

func TestTxLockOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	_, err := postgres.TryTxLock(context.Background(), stdStranger{postgres.StdTx((*sql.Tx)(nil))}, "a")
	wantKind(t, err, interlock.Bug, "")
}
