package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound is how long a test waits for what must happen.
const bound = 20 * time.Second

// tx is what the two kinds of transactions have in common.
type tx interface {
	driver.SQL
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
	Classify(err error) error
}

// client is one way to reach a database.
type client struct {
	begin func(ctx context.Context) (tx, error)
	open  func() int // connections that are in use
}

func from[T any](b driver.Beginner[T]) func(ctx context.Context) (tx, error) {
	return func(ctx context.Context) (tx, error) {
		t, err := b.Begin(ctx)
		if err != nil {
			return nil, err
		}
		return t.(tx), nil
	}
}

func openPgx(t *testing.T, url string) client {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return client{begin: from(postgres.Pool(pool)), open: func() int { return int(pool.Stat().AcquiredConns()) }}
}

func openStd(t *testing.T, url string) client {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return client{begin: from(postgres.DB(db)), open: func() int { return db.Stats().InUse }}
}

// withBoth runs test with pgx and with database/sql.
func withBoth(t *testing.T, test func(t *testing.T, open func(t *testing.T, url string) client)) {
	t.Run("pgx", func(t *testing.T) { test(t, openPgx) })
	t.Run("database-sql", func(t *testing.T) { test(t, openStd) })
}

func (c client) mustBegin(t *testing.T) tx {
	t.Helper()
	x, err := c.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Rollback(context.Background()) })
	return x
}

// do runs statements in a transaction of their own.
func (c client) do(t *testing.T, queries ...string) {
	t.Helper()
	x := c.mustBegin(t)
	mustExec(t, x, queries...)
	if err := x.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func mustExec(t *testing.T, x tx, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := x.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// number is the single number that query gives.
func number(t *testing.T, x tx, query string, args ...any) (n int64) {
	t.Helper()
	err := x.Query(t.Context(), query, args, func(scan func(...any) error) error { return scan(&n) })
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
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

// TestPostgres runs every test against one server.
func TestPostgres(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *testbed.Server)
	}{
		{"kinds by what the server says", testKindsByTheServer},
		{"the end of the session", testTheEndOfTheSession},
		{"errors of user code", testClassify},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, server) })
	}
}

func testKindsByTheServer(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		c := open(t, server.URL())
		c.do(t, `drop table if exists k`, `create table k (k int primary key, v int unique deferrable initially deferred)`,
			`insert into k values (1, 1), (2, 2)`)

		t.Run("constraint", func(t *testing.T) {
			_, err := c.mustBegin(t).Exec(t.Context(), `insert into k values (1, 7)`)
			wantKind(t, err, interlock.Definite, "23505")
		})
		t.Run("constraint at commit", func(t *testing.T) {
			x := c.mustBegin(t)
			mustExec(t, x, `insert into k values (3, 1)`)
			wantKind(t, x.Commit(t.Context()), interlock.Definite, "23505")
		})
		t.Run("commit of what failed", func(t *testing.T) {
			x := c.mustBegin(t)
			if _, err := x.Exec(t.Context(), `select 1/0`); err == nil {
				t.Fatal("divided by zero")
			}
			wantKind(t, x.Commit(t.Context()), interlock.Definite, "")
		})
		t.Run("bad statement in a query", func(t *testing.T) {
			err := c.mustBegin(t).Query(t.Context(), `select from nowhere`, nil, nil)
			wantKind(t, err, interlock.Definite, "42P01")
		})
		t.Run("lock timeout", func(t *testing.T) {
			mustExec(t, c.mustBegin(t), `update k set v = v where k = 1`)
			x := c.mustBegin(t)
			mustExec(t, x, `set local lock_timeout = '20ms'`)
			_, err := x.Exec(t.Context(), `update k set v = v where k = 1`)
			wantKind(t, err, interlock.Retryable, "55P03")
		})
		t.Run("serialization", func(t *testing.T) {
			x, y := c.mustBegin(t), c.mustBegin(t)
			for i, z := range []tx{x, y} {
				mustExec(t, z, `set transaction isolation level serializable`)
				number(t, z, `select sum(k) from k`)
				mustExec(t, z, fmt.Sprintf(`insert into k values (%d, %d)`, 10+i, 10+i))
			}
			if err := x.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantKind(t, y.Commit(t.Context()), interlock.Retryable, "40001")
		})
	})
}

func testTheEndOfTheSession(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		c := open(t, server.URL())
		admin := openPgx(t, server.URL())
		gone := func(t *testing.T, pid int64) {
			t.Helper()
			testbed.Eventually(t, "the session ends", bound, func() bool {
				x := admin.mustBegin(t)
				defer x.Rollback(t.Context())
				return number(t, x, `select count(*) from pg_stat_activity where pid = $1::bigint`, pid) == 0
			})
		}
		t.Run("terminated while a statement runs", func(t *testing.T) {
			x := c.mustBegin(t)
			_, err := x.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
			wantKind(t, err, interlock.Retryable, "57P01")
			_ = x.Rollback(t.Context())
			testbed.Eventually(t, "the connection is given up", bound, func() bool { return c.open() == 0 })
		})
		for _, after := range []string{"idle time-out", "termination"} {
			for _, next := range []string{"statement", "commit"} {
				t.Run(after+", then a "+next, func(t *testing.T) {
					x := c.mustBegin(t)
					pid := number(t, x, `select pg_backend_pid()`)
					if after == "termination" {
						admin.do(t, fmt.Sprintf(`select pg_terminate_backend(%d)`, pid))
					} else {
						mustExec(t, x, `set local idle_in_transaction_session_timeout = '10ms'`)
					}
					gone(t, pid)
					afterTheEnd(t, x, next, after)
				})
			}
		}
	})
}

// afterTheEnd uses a transaction whose session is gone. The server's last words
// may be lost on the way, and then it is not known what ended it.
func afterTheEnd(t *testing.T, x tx, next, after string) {
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

func testClassify(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		x := open(t, server.URL()).mustBegin(t)
		serialization := fmt.Errorf("book: %w", &pgconn.PgError{Code: "40001"})
		wantKind(t, x.Classify(serialization), interlock.Retryable, "40001")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "57P01"}), interlock.Retryable, "57P01")
		wantKind(t, x.Classify(&pgconn.PgError{Code: "23505"}), interlock.Definite, "23505")
		wantKind(t, x.Classify(pgconn.ErrConnClosed), interlock.Retryable, "")
		for _, own := range []error{nil, errors.New("no money"), context.Canceled, sql.ErrNoRows,
			&interlock.Error{Op: "x", Kind: interlock.Bug, Err: pgconn.ErrConnClosed}} {
			if got := x.Classify(own); got != own {
				t.Errorf("%v became %v", own, got)
			}
		}
	})
}
