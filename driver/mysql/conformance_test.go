package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const suiteTTL = 3 * time.Second

func TestTableFenced(t *testing.T)  { drivertest.RunFenced(t, tableHarness(t)) }
func TestTableWatcher(t *testing.T) { t.Parallel(); drivertest.RunWatcher(t, tableHarness(t)) }
func TestTableBreaker(t *testing.T) { t.Parallel(); drivertest.RunBreaker(t, tableHarness(t)) }

var namespaces atomic.Int64

// serverFor returns a separate server for a test, or the shared one with a separate
// namespace.
func serverFor(t *testing.T, shared *testbed.Server, exclusive bool) (*testbed.Server, string) {
	if exclusive {
		return mariaDB(t), mysql.DefaultNamespace
	}
	return shared, fmt.Sprint("n", namespaces.Add(1))
}

func tableHarness(t *testing.T) drivertest.Harness {
	return harness(t, drivertest.Queue, func(t *testing.T, dsn, namespace string) (driver.Fenced, error) {
		db := open(t, dsn+"?interpolateParams=true&clientFoundRows="+fmt.Sprint(namespaces.Load()%2 == 0))
		return mysql.OpenTable(t.Context(), db.DB, &mysql.Options{TTL: suiteTTL, Namespace: namespace})
	}, func(b backend) drivertest.Backend { return &tableBackend{b} })
}

// harness returns the harness of one kind of lock.
func harness(t *testing.T, without drivertest.Ability, opener func(t *testing.T, dsn, namespace string) (driver.Fenced, error),
	kind func(backend) drivertest.Backend) drivertest.Harness {
	shared := testbed.Shared(t, testbed.MariaDB)
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			server, namespace := serverFor(t, shared, exclusive)
			return kind(backend{paths.At(server, func(t *testing.T, addr string) (driver.Fenced, error) {
				return opener(t, dsnAt(server, addr), namespace)
			}), open(t, server.URL()), namespace})
		},
		TTL:        suiteTTL,
		Heartbeat:  mysql.DefaultPoll,
		DeadWaiter: suiteTTL + 2*mysql.DefaultPoll, // it may die during a try
		HandOvers:  100,
		Without:    drivertest.FIFO | drivertest.LostPushes | without,
	}
}

// backend is a server with a separate path for each driver.
type backend struct {
	paths.Backend[driver.Fenced]
	operator  database // not by a path with faults
	namespace string
}

type tableBackend struct{ backend }

func (b *tableBackend) Residue(t *testing.T, name string) (left []string) {
	t.Helper()
	if owner := b.operator.text(t, `select coalesce(max(concat('held by ', owner)), '') from `+b.namespace+`_lease
		where name = ? and owner <> '' and expires > utc_timestamp(6)`, name); owner != "" {
		left = append(left, owner)
	}
	return left
}

func (b *tableBackend) Delete(t *testing.T, name string) {
	t.Helper()
	_, err := b.operator.Exec(`delete from `+b.namespace+`_lease where name = ?`, name)
	testbed.OK(t, err)
}

func TestFenced(t *testing.T)  { drivertest.RunFenced(t, sessionHarness(t)) }
func TestWatcher(t *testing.T) { t.Parallel(); drivertest.RunWatcher(t, sessionHarness(t)) }
func TestBreaker(t *testing.T) { t.Parallel(); drivertest.RunBreaker(t, sessionHarness(t)) }

func sessionHarness(t *testing.T) drivertest.Harness {
	return harness(t, drivertest.Queue|drivertest.Expiry|drivertest.LoneBreaks, func(t *testing.T, dsn, namespace string) (driver.Fenced, error) {
		return mysql.Open(t.Context(), config(t, dsn), &mysql.Options{TTL: suiteTTL, Namespace: namespace})
	}, func(b backend) drivertest.Backend { return &sessionBackend{b} })
}

type sessionBackend struct{ backend }

func config(t testing.TB, dsn string) *client.Config {
	t.Helper()
	c, err := client.ParseDSN(dsn)
	testbed.OK(t, err)
	return c
}

// user returns the connection that has the lock of name, or 0.
func (b *sessionBackend) user(t *testing.T, name string) string {
	t.Helper()
	return b.operator.text(t, `select coalesce(is_used_lock(?), 0)`, mysql.LockName("test", b.namespace, name))
}

func (b *sessionBackend) Residue(t *testing.T, name string) (left []string) {
	t.Helper()
	if id := b.user(t, name); id != "0" {
		left = append(left, "held by connection "+id)
	}
	return left
}

// Delete ends the session that holds name.
func (b *sessionBackend) Delete(t *testing.T, name string) {
	t.Helper()
	id := b.user(t, name)
	if id == "0" {
		return
	}
	b.operator.do(t, "kill "+id)
	testbed.Eventually(t, "the session ends", bound, func() bool { return b.user(t, name) != id })
}

var rowsOf = map[string]string{"session": "interlock_holder", "table": "interlock_lease"}

func TestSeed(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			drivertest.RunSeed(t, drivertest.SeedHarness{
				Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
					d, err := m.open(t.Context(), t, server.URL(), &mysql.Options{Seed: seed})
					if err != nil {
						return nil, err
					}
					t.Cleanup(func() { d.Close(context.Background()) })
					return d.(drivertest.Seeded), nil
				},
				Set: func(t *testing.T, counter int64) {
					admin.do(t, fmt.Sprintf(`update %s set counter = %d`, rowsOf[m.name], counter))
				},
			})
		})
	}
}

// TestKeyValues runs each test in another mode of sessions, with parameters inlined and not.
func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := mariaDB(t)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			n := namespaces.Add(1)
			mode := databases.Modes[n%int64(len(databases.Modes))]
			if n/2%2 == 0 {
				mode += map[bool]string{true: "?", false: "&"}[mode == ""] + "interpolateParams=true&clientFoundRows=true"
			}
			t.Log("sessions:", mode)
			return paths.At(server, func(t *testing.T, addr string) (driver.KeyValues, error) {
				return mysql.NewKeyValues(open(t, dsnAt(server, addr)+mode).DB, "test."+namespace+"_kv"), nil
			})
		},
	})
}

// TestSwapWithoutAConnection: a swap that got no connection of the pool was not sent.
func TestSwapWithoutAConnection(t *testing.T) {
	db := open(t, mariaDB(t).URL())
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	testbed.OK(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = mysql.NewKeyValues(db.DB, "kv").Swap(ctx, driver.Swap{Key: "k", Value: []byte("v")})
	testbed.WantKind(t, err, interlock.Definite, context.DeadlineExceeded)
}

// TestSwapLocksWhatItCompares: otherwise a row could be removed between the comparison and the
// write, which would insert it.
func TestSwapLocksWhatItCompares(t *testing.T) {
	server := mariaDB(t)
	db := open(t, server.URL())
	store := mysql.NewKeyValues(db.DB, "kv")
	if _, err := store.Swap(t.Context(), driver.Swap{Key: "a"}); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	testbed.OK(t, err)
	defer tx.Rollback()
	if _, err := tx.Exec(`delete from kv`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if revision, err := store.Swap(ctx, driver.Swap{Key: "a", Revision: 1}); err == nil {
		t.Errorf("a swap of another revision did not wait for the row: %d", revision)
	}
}

// TestSwapsOfAKeyThatIsNotThere: both have compared before one of them writes. Without gap locks,
// which would deadlock, only the write detects that.
func TestSwapsOfAKeyThatIsNotThere(t *testing.T) {
	server := mariaDB(t)
	db := open(t, server.URL())
	stores := []*mysql.KeyValues{mysql.NewKeyValues(db.DB, "kv"), mysql.NewKeyValues(db.DB, "test.kv")}
	if _, err := stores[0].Swap(t.Context(), driver.Swap{Key: "z"}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`create trigger slow before insert on kv for each row set @slept = sleep(0.5)`); err != nil {
		t.Fatal(err)
	}
	won := make([]bool, len(stores))
	var running sync.WaitGroup
	for i, store := range stores {
		running.Go(func() {
			revision, err := store.Swap(t.Context(), driver.Swap{Key: "a", Value: []byte{byte(i)}})
			if won[i] = revision > 0; err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	kvs, err := stores[0].Get(t.Context(), "a")
	if err != nil || won[0] == won[1] || won[kvs[0].Value[0]] == false {
		t.Errorf("won: %v, and the key has %v: %v", won, kvs, err)
	}
}

// TestCostOfKeyValues: each call is one statement, for any number of keys, without prepared
// parameters; a deletion is one more.
func TestCostOfKeyValues(t *testing.T) {
	db := open(t, mariaDB(t).URL()).DB
	db.SetMaxOpenConns(1) // its session counts nothing of other connections
	store := mysql.NewKeyValues(db, "kv")
	ctx := context.WithoutCancel(t.Context())
	questions := func() (n int64) {
		t.Helper()
		if err := db.QueryRowContext(ctx, "show session status like 'Questions'").Scan(new(string), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	swap := func(revision int64, deletes bool) int64 {
		t.Helper()
		var swaps []driver.Swap
		for i := range driver.MaxSwaps {
			swaps = append(swaps, driver.Swap{Key: fmt.Sprint(i), Revision: revision, Value: []byte("x"), Delete: deletes})
		}
		revision, err := store.Swap(ctx, swaps...)
		if err != nil || revision == 0 {
			t.Fatal(revision, err)
		}
		return revision
	}
	revision := swap(0, false) // it creates the table
	costs := func(want int64, do func()) {
		t.Helper()
		before := questions()
		do()
		if n := questions() - before - 1; n != want { // one SHOW STATUS counts
			t.Errorf("it cost %d statements, want %d", n, want)
		}
	}
	costs(1, func() { revision = swap(revision, false) })
	costs(1, func() { _, _ = store.Get(ctx, "1", "2", "3") })
	costs(1, func() { _, _ = store.Scan(ctx, "", "", 100) })
	costs(2, func() { swap(revision, true) })
}

// TestFailedSwapLeavesTheLevel: the next transaction of the user's session has the session's level.
func TestFailedSwapLeavesTheLevel(t *testing.T) {
	t.Parallel()
	url := mariaDB(t).URL()
	for _, statement := range []string{"create table probe (a int)", "create table kv (a int)", "create user app@127.0.0.1",
		"grant insert on test.probe to app@127.0.0.1", "grant process on *.* to app@127.0.0.1"} {
		_, err := open(t, url).DB.ExecContext(t.Context(), statement)
		testbed.OK(t, err)
	}
	db := open(t, strings.Replace(url, "root@", "app@", 1)).DB
	db.SetMaxOpenConns(1)
	if _, err := mysql.NewKeyValues(db, "kv").Swap(t.Context(), driver.Swap{Key: "a"}); err == nil {
		t.Fatal("a table without a grant was written")
	}
	tx, err := db.BeginTx(t.Context(), nil)
	testbed.OK(t, err)
	defer tx.Rollback()
	_, err = tx.ExecContext(t.Context(), "insert into probe values (1)")
	testbed.OK(t, err)
	var level string
	testbed.OK(t, tx.QueryRowContext(t.Context(), "select trx_isolation_level from information_schema.innodb_trx where trx_mysql_thread_id = connection_id()").Scan(&level))
	if level != "REPEATABLE READ" {
		t.Errorf("a failed swap left %s", level)
	}
}
