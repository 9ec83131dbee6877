package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound is how long a test waits for what must happen.
const bound = 20 * time.Second

// eachClient runs test with pgx and with database/sql, each in a database of its own.
func eachClient(t *testing.T, test func(t *testing.T, db *databases.DB)) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) { test(t, open(t)) }, databases.Pgx, databases.PgxStd)
}

// begun returns a transaction that is rolled back after the test.
func begun(t *testing.T, db *databases.DB) driver.Tx[driver.SQL] {
	t.Helper()
	return db.Begun(t, driver.SessionIsolation)
}

func mustExec(t *testing.T, x driver.SQL, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := x.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// number is the single number that query gives.
func number(t *testing.T, x driver.SQL, query string, args ...any) int64 {
	t.Helper()
	n, err := databases.Value[int64](t.Context(), x, query, args...)
	testbed.OK(t, err)
	return n
}

func wantKind(t *testing.T, err error, kind interlock.ErrorKind, state string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	var native *pgconn.PgError
	code := ""
	if errors.As(err, &native) {
		code = native.Code
	}
	if got := interlock.Kind(err); got != kind || state != "*" && code != state {
		t.Errorf("%v: kind %v with SQLSTATE %q, want %v with %q", err, got, code, kind, state)
	}
}

func TestKindsByTheServer(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		db.Exec(t, `create table k (k int primary key)`, `insert into k values (1)`)
		t.Run("constraint", func(t *testing.T) {
			_, err := begun(t, db).Exec(t.Context(), `insert into k values (1)`)
			wantKind(t, err, interlock.Definite, "23505")
		})
		t.Run("commit of what failed", func(t *testing.T) {
			x := begun(t, db)
			if _, err := x.Exec(t.Context(), `select 1/0`); err == nil {
				t.Fatal("divided by zero")
			}
			wantKind(t, x.Commit(t.Context()), interlock.Definite, "")
		})
		t.Run("bad statement in a query", func(t *testing.T) {
			err := begun(t, db).Query(t.Context(), `select from nowhere`, nil, nil)
			wantKind(t, err, interlock.Definite, "42P01")
		})
	})
}

func TestTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		t.Run("terminated while a statement runs", func(t *testing.T) {
			x := begun(t, db)
			_, err := x.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
			wantKind(t, err, interlock.Retryable, "57P01")
		})
		for _, after := range []string{"idle time-out", "termination"} {
			for _, next := range []string{"statement", "commit"} {
				t.Run(after+", then a "+next, func(t *testing.T) {
					x := begun(t, db)
					pid := number(t, x, `select pg_backend_pid()`)
					if after == "termination" {
						db.Exec(t, fmt.Sprintf(`select pg_terminate_backend(%d)`, pid))
					} else {
						mustExec(t, x, `set local idle_in_transaction_session_timeout = '10ms'`)
					}
					testbed.Eventually(t, "the session ends", bound, func() bool {
						return databases.One[int64](t, db, `select count(*) from pg_stat_activity where pid = $1::bigint`, pid) == 0
					})
					afterTheEnd(t, x, next, after)
				})
			}
		}
	})
}

// afterTheEnd uses a transaction whose session is gone. The server's last words
// may be lost on the way, and then it is not known what ended it.
func afterTheEnd(t *testing.T, x driver.Tx[driver.SQL], next, after string) {
	t.Helper()
	var err error
	if next == "commit" {
		err = x.Commit(t.Context())
	} else {
		_, err = x.Exec(t.Context(), `select 1`)
	}
	want := interlock.Retryable
	if next == "commit" && after == "termination" {
		want = interlock.Uncertain
	}
	var native *pgconn.PgError
	known := errors.As(err, &native)
	switch kind := interlock.Kind(err); {
	case err == nil:
		t.Error("it went on")
	case known && kind != want, !known && kind == interlock.Definite:
		t.Errorf("%v: kind %v, want %v", err, kind, want)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	eachClient(t, func(t *testing.T, db *databases.DB) {
		x := begun(t, db)
		serialization := fmt.Errorf("book: %w", &pgconn.PgError{Code: "40001"})
		wantKind(t, x.Classify(serialization), interlock.Retryable, "40001")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "57P01"}), interlock.Retryable, "57P01")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "23505"}), interlock.Definite, "23505")
		for _, resource := range []string{"53000", "53100", "53200", "53300"} {
			wantKind(t, x.Classify(&pgconn.PgError{Code: resource}), interlock.Retryable, resource)
		}
		wantKind(t, x.Classify(&pgconn.PgError{Code: "53400"}), interlock.Definite, "53400")
		wantKind(t, x.Classify(pgconn.ErrConnClosed), interlock.Retryable, "")
		for _, own := range []error{nil, errors.New("no money"), context.Canceled, sql.ErrNoRows,
			&interlock.Error{Op: "x", Kind: interlock.Bug, Err: pgconn.ErrConnClosed}} {
			if got := x.Classify(own); got != own {
				t.Errorf("%v became %v", own, got)
			}
		}
	})
}
