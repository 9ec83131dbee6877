package isolation_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/guard/isolation"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// exec runs a statement by the client's own handle, with the client's errors.
type exec func(query string) error

// native runs transactions whose function uses only the client library.
type native struct {
	*databases.DB
	do func(ctx context.Context, level driver.Isolation, o *isolation.Options, fn func(exec) error) error
}

func openNative(t *testing.T, db *databases.DB) native {
	t.Helper()
	return native{db, reach(t, db.Client, db.URL)}
}

func reach(t *testing.T, client, url string) func(context.Context, driver.Isolation, *isolation.Options, func(exec) error) error {
	t.Helper()
	if client == databases.Pgx {
		pool, err := pgxpool.New(context.WithoutCancel(t.Context()), url)
		ok(t, err)
		t.Cleanup(pool.Close)
		return func(ctx context.Context, level driver.Isolation, o *isolation.Options, fn func(exec) error) error {
			return isolation.Do(ctx, postgres.Pool(pool), level, o, func(ctx context.Context, tx pgx.Tx) error {
				return fn(func(query string) error { _, err := tx.Exec(ctx, query); return err })
			})
		}
	}
	library, by := "mysql", mysql.DB
	switch client {
	case databases.PgxStd:
		library, by = "pgx", postgres.DB
	case databases.MariaInlined:
		url = databases.With(url, "clientFoundRows=true&interpolateParams=true")
	}
	pool, err := sql.Open(library, url)
	ok(t, err)
	t.Cleanup(func() { pool.Close() })
	return func(ctx context.Context, level driver.Isolation, o *isolation.Options, fn func(exec) error) error {
		return isolation.Do(ctx, by(pool), level, o, func(ctx context.Context, tx *sql.Tx) error {
			return fn(func(query string) error { _, err := tx.ExecContext(ctx, query); return err })
		})
	}
}

// codes collects the reasons for retries.
type codes struct {
	mu   sync.Mutex
	seen []string
	each func(error)
}

func (c *codes) options() *isolation.Options {
	return &isolation.Options{Attempts: 10, Observe: observe.Isolation{Retried: func(e observe.IsolationRetried) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen = append(c.seen, code(e.Err))
		if c.each != nil {
			c.each(e.Err)
		}
	}}}
}

// TestCodes causes each retried error, on the servers that have it, and requires that the retry
// succeeds.
func TestCodes(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range map[string]func(*testing.T, native){
			"deadlock":                testDeadlock,
			"write on an old picture": testConflictingWrite,
			"lock timeout":            testLockTimeout,
			"swallowed deadlock":      testSwallowed,
			"cut before commit":       testCutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := open(t)
				db.Exec(t, `create table account (id bigint primary key, v bigint not null)`,
					`insert into account (id, v) values (1, 10), (2, 10)`)
				test(t, openNative(t, db))
			})
		}
	}, databases.All...)
}

// both runs two transactions that meet in their first attempts.
func (n native) both(t *testing.T, level driver.Isolation, c *codes, fn func(i int, do exec, meet func()) error) {
	t.Helper()
	m := newMeeting(true)
	var running sync.WaitGroup
	for i := range 2 {
		running.Go(func() {
			var once sync.Once
			err := n.do(t.Context(), level, c.options(), func(do exec) error {
				return fn(i, do, func() { once.Do(m.wait) })
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

func (c *codes) want(t *testing.T, dialect driver.Dialect, postgres, mariadb string) {
	t.Helper()
	want := map[driver.Dialect]string{driver.Postgres: postgres, driver.MariaDB: mariadb}[dialect]
	if !slices.Contains(c.seen, want) {
		t.Errorf("run again for %q, want %s among them", c.seen, want)
	}
}

func (n native) sum(t *testing.T, want int64) {
	t.Helper()
	if got := databases.One[int64](t, n.DB, readSum); got != want {
		t.Errorf("the sum is %d, want %d", got, want)
	}
}

func add(id string) string { return `update account set v = v + 1 where id = ` + id }

func testDeadlock(t *testing.T, n native) {
	var c codes
	n.both(t, driver.ReadCommitted, &c, func(i int, do exec, meet func()) error {
		order := [][]string{{"1", "2"}, {"2", "1"}}[i]
		if err := do(add(order[0])); err != nil {
			return err
		}
		meet()
		return do(add(order[1]))
	})
	c.want(t, n.Dialect, "40P01", "1213")
	n.sum(t, 24)
}

// testConflictingWrite causes 1020 on MariaDB, which detects it only if an option is set.
func testConflictingWrite(t *testing.T, n native) {
	var c codes
	n.both(t, driver.RepeatableRead, &c, func(i int, do exec, meet func()) error {
		if n.Dialect == driver.MariaDB {
			if err := do(`set session innodb_snapshot_isolation = on`); err != nil {
				return err
			}
		}
		if err := do(`select v from account`); err != nil {
			return err
		}
		meet()
		return do(add("1"))
	})
	c.want(t, n.Dialect, "40001", "1020")
	n.sum(t, 22)
}

func testLockTimeout(t *testing.T, n native) {
	holder := n.Begun(t, driver.ReadCommitted)
	_, err := holder.Exec(t.Context(), add("1"))
	ok(t, err)
	var freed sync.Once
	c := codes{each: func(err error) {
		if !errors.Is(err, interlock.ErrHeld) {
			t.Errorf("%v is not ErrHeld", err)
		}
		freed.Do(func() { ok(t, holder.Commit(t.Context())) })
	}}
	ok(t, n.do(t.Context(), driver.ReadCommitted, c.options(), func(do exec) error {
		limit := `set local lock_timeout = 100`
		if n.Dialect == driver.MariaDB {
			limit = `set session innodb_lock_wait_timeout = 1`
		}
		if err := do(limit); err != nil {
			return err
		}
		return do(add("1"))
	}))
	c.want(t, n.Dialect, "55P03", "1205")
	n.sum(t, 22)
}

// testSwallowed: a function ignores that it was the victim of a deadlock. None of its writes
// remains, and there is an error.
func testSwallowed(t *testing.T, n native) {
	m := newMeeting(true)
	errs, victims := make([]error, 2), make([]error, 2)
	var running sync.WaitGroup
	for i := range 2 {
		running.Go(func() {
			order := [][]string{{"1", "2"}, {"2", "1"}}[i]
			errs[i] = n.do(t.Context(), driver.ReadCommitted, nil, func(do exec) error {
				if err := do(add(order[0])); err != nil {
					return err
				}
				m.wait()
				victims[i] = do(add(order[1]))
				_ = do(`update account set v = v + 100 where id = ` + order[0])
				return nil
			})
		})
	}
	running.Wait()
	told := 0
	for i := range 2 {
		if (errs[i] == nil) != (victims[i] == nil) {
			t.Errorf("a victim of %v gets %v", victims[i], errs[i])
		}
		if errs[i] != nil {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%v", errs)
	}
	n.sum(t, 20+2+100)
}

// testCutBefore: a connection that is lost before COMMIT did nothing.
func testCutBefore(t *testing.T, n native) {
	proxy := testbed.NewProxy(t, n.Server.Addr())
	do := reach(t, n.Client, strings.Replace(n.URL, n.Server.Addr(), proxy.Addr(), 1))
	runs := 0
	ok(t, do(t.Context(), driver.Serializable, nil, func(do exec) error {
		runs++
		if err := do(add("1")); err != nil {
			return err
		}
		if runs == 1 {
			proxy.Cut()
			proxy.Heal() // which closes what was cut
		}
		return do(add("1"))
	}))
	if runs < 2 {
		t.Errorf("%d runs", runs)
	}
	n.sum(t, 22)
}
