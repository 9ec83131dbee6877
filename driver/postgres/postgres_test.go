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
		{"statements", testStatements},
		{"kinds by what the server says", testKindsByTheServer},
		{"the end of the session", testTheEndOfTheSession},
		{"a lost commit", testLostCommit},
		{"begin", testBegin},
		{"rollback ignores cancellation", testRollbackIgnoresCancellation},
		{"rollback is bounded", testRollbackIsBounded},
		{"errors of user code", testClassify},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, server) })
	}
}

func testStatements(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		c := open(t, server.URL())
		c.do(t, `drop table if exists s`, `create table s (k text primary key, v bigint)`)
		x := c.mustBegin(t)
		if x.Dialect() != driver.Postgres {
			t.Errorf("dialect %q", x.Dialect())
		}
		n, err := x.Exec(t.Context(), `insert into s select 'k' || i, i from generate_series(1::bigint, $1::bigint) i`, int64(5))
		if err != nil || n != 5 {
			t.Fatalf("inserted %d, %v", n, err)
		}
		var got []string
		stop := errors.New("stop")
		err = x.Query(t.Context(), `select k, v from s where v >= $1 order by v`, []any{int64(2)}, func(scan func(...any) error) error {
			var k string
			var v int64
			if err := scan(&k, &v); err != nil {
				return err
			}
			if got = append(got, fmt.Sprint(k, v)); len(got) == 3 {
				return stop
			}
			return nil
		})
		if err != stop || fmt.Sprint(got) != "[k22 k33 k44]" {
			t.Errorf("read %v, %v", got, err)
		}
		if err := x.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := x.Rollback(t.Context()); err != nil {
			t.Errorf("a second rollback: %v", err)
		}
		x = c.mustBegin(t)
		if n := number(t, x, `select count(*) from s`); n != 0 {
			t.Errorf("%d rows after a rollback", n)
		}
		mustExec(t, x, `insert into s values ('a', 1)`)
		if err := x.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if err := x.Rollback(t.Context()); err != nil {
			t.Errorf("a rollback after a commit: %v", err)
		}
		_, err = x.Exec(t.Context(), `select 1`)
		wantKind(t, err, interlock.Definite, "")
		if n := number(t, c.mustBegin(t), `select count(*) from s`); n != 1 {
			t.Errorf("%d rows after a commit", n)
		}
	})
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
		t.Run("deadlock", func(t *testing.T) { deadlock(t, c) })
	})
}

func deadlock(t *testing.T, c client) {
	x, y := c.mustBegin(t), c.mustBegin(t)
	for _, z := range []tx{x, y} {
		mustExec(t, z, `set local deadlock_timeout = '10ms'`)
	}
	mustExec(t, x, `update k set v = v where k = 1`)
	mustExec(t, y, `update k set v = v where k = 2`)
	errs := make(chan error)
	cross := func(z tx, query string) {
		_, err := z.Exec(t.Context(), query)
		_ = z.Rollback(t.Context())
		errs <- err
	}
	go cross(x, `update k set v = v where k = 2`)
	go cross(y, `update k set v = v where k = 1`)
	err := errors.Join(<-errs, <-errs)
	wantKind(t, err, interlock.Retryable, "40P01")
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

func testLostCommit(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		admin := openPgx(t, server.URL())
		admin.do(t, `drop table if exists l`, `create table l (k int)`)
		proxy := testbed.NewProxy(t, server.Addr())
		x := open(t, "postgres://postgres@"+proxy.Addr()+"/postgres?sslmode=disable").mustBegin(t)
		mustExec(t, x, `insert into l values (1)`)
		proxy.DropReplies()
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- x.Commit(ctx) }()
		testbed.Eventually(t, "the commit arrives", bound, func() bool {
			y := admin.mustBegin(t)
			defer y.Rollback(t.Context())
			return number(t, y, `select count(*) from l`) == 1
		})
		gaveUp := errors.New("gave up")
		cancel(gaveUp)
		err := <-done
		wantKind(t, err, interlock.Uncertain, "")
		if !errors.Is(err, interlock.ErrUncertain) || !errors.Is(err, gaveUp) {
			t.Errorf("%v does not tell the cause", err)
		}
		proxy.Heal() // so that the client need not wait for the end of its connection
	})
}

func testBegin(t *testing.T, server *testbed.Server) {
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		proxy := testbed.NewProxy(t, server.Addr())
		c := open(t, "postgres://postgres@"+proxy.Addr()+"/postgres?sslmode=disable")
		ended := errors.New("ended before")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ended)
		if _, err := c.begin(ctx); !errors.Is(err, ended) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("with an ended context: %v", err)
		}
		proxy.Cut()
		_, err := c.begin(t.Context())
		wantKind(t, err, interlock.Retryable, "")
		_, err = open(t, "postgres://postgres@"+server.Addr()+"/nowhere?sslmode=disable").begin(t.Context())
		wantKind(t, err, interlock.Definite, "3D000")
	})
}

func testRollbackIgnoresCancellation(t *testing.T, server *testbed.Server) {
	c := openPgx(t, server.URL())
	c.do(t, `create table r (k int)`)
	ctx, cancel := context.WithCancel(t.Context())
	x, err := c.begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, x, `lock table r`)
	pid := number(t, x, `select pg_backend_pid()`)
	cancel()
	if err := x.Rollback(ctx); err != nil {
		t.Errorf("rollback: %v", err)
	}
	y := c.mustBegin(t)
	mustExec(t, y, `lock table r nowait`)
	if got := number(t, y, `select pg_backend_pid()`); got != pid {
		t.Errorf("connection %d was given up for %d", pid, got)
	}
}

func testRollbackIsBounded(t *testing.T, server *testbed.Server) {
	t.Parallel()
	withBoth(t, func(t *testing.T, open func(*testing.T, string) client) {
		t.Parallel()
		proxy := testbed.NewProxy(t, server.Addr())
		c := open(t, "postgres://postgres@"+proxy.Addr()+"/postgres?sslmode=disable")
		x := c.mustBegin(t)
		proxy.Cut()
		if err := x.Rollback(t.Context()); err == nil {
			t.Error("rolled back over a path that is cut")
		}
		proxy.Heal()
		testbed.Eventually(t, "the connection is given up", bound, func() bool { return c.open() == 0 })
	})
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
