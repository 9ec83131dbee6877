package mysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

func TestMain(m *testing.M) { crash.Main(m, roles) }

// bound bounds the wait of a test for a condition.
const bound = 20 * time.Second

type tx = driver.Tx[*sql.Tx]

// database is one way to a server.
type database struct{ *sql.DB }

func open(t testing.TB, dsn string) database {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	testbed.OK(t, err)
	t.Cleanup(func() { db.Close() })
	return database{db}
}

// behind returns the server's DSN with a proxy's address.
func behind(server *testbed.Server, proxy *testbed.Proxy) string { return dsnAt(server, proxy.Addr()) }

func dsnAt(server *testbed.Server, addr string) string {
	return strings.Replace(server.URL(), server.Addr(), addr, 1)
}

func (d database) mustBegin(t *testing.T) tx {
	t.Helper()
	x, err := mysql.DB(d.DB).Begin(t.Context())
	testbed.OK(t, err)
	t.Cleanup(func() { _ = x.Rollback(context.Background()) })
	return x
}

func (d database) do(t testing.TB, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := d.ExecContext(context.Background(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func (d database) text(t testing.TB, query string, args ...any) (s string) {
	t.Helper()
	if err := d.QueryRowContext(context.Background(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s
}

func mustExec(t *testing.T, x driver.SQL, queries ...string) {
	t.Helper()
	for _, q := range queries {
		if _, err := x.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// one returns the single value of a query.
func one[V any](t *testing.T, x driver.SQL, query string, args ...any) (v V) {
	t.Helper()
	err := x.Query(t.Context(), query, args, func(scan func(...any) error) error { return scan(&v) })
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// wantKind checks the kind, and the server's number; 0 means an error of the client.
func wantKind(t *testing.T, err error, kind interlock.ErrorKind, number uint16) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	var native *client.MySQLError
	got := uint16(0)
	if errors.As(err, &native) {
		got = native.Number
	}
	if interlock.Kind(err) != kind || got != number {
		t.Errorf("%v: kind %v with number %d, want %v with %d", err, interlock.Kind(err), got, kind, number)
	}
}

// TestTransactions runs every test against one server, each in a separate database.
func TestTransactions(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	for i, tt := range []struct {
		name string
		test func(*testing.T, world)
	}{
		{"lent by the user", testLent},
		{"kinds by what the server says", testKinds},
		{"a failed transaction is not committed", testFailedBefore},
		{"the end of the session", testEndOfSession},
		{"errors of user code", testClassify},
		{"settings are given back", testSettings},
		{"what follows an undone transaction is not committed", testUndone},
		{"what follows an implicit commit is not committed", testImplicitCommit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("test%d", i)
			admin.do(t, "create database "+name)
			url := strings.Replace(server.URL(), "/test", "/"+name, 1)
			tt.test(t, world{open(t, url), server, url})
		})
	}
}

type world struct {
	database
	server *testbed.Server
	url    string
}

func testLent(t *testing.T, w world) {
	w.do(t, "create table l (k int primary key)", "insert into l values (1)")
	user, err := w.BeginTx(t.Context(), nil)
	testbed.OK(t, err)
	defer user.Rollback()
	x := mysql.Tx(user)
	mustExec(t, x, "insert into l values (2)")
	_, err = x.Exec(t.Context(), "insert into l values (1)")
	wantKind(t, err, interlock.Definite, 1062)
	mustExec(t, x, "insert into l values (3)") // as MariaDB allows
	testbed.OK(t, user.Commit())
	_, err = x.Exec(t.Context(), "insert into l values (4)")
	wantKind(t, err, interlock.Definite, 0)
	if n := w.text(t, "select count(*) from l"); n != "3" {
		t.Errorf("%s rows", n)
	}
}

func testKinds(t *testing.T, w world) {
	w.do(t, "create table k (k int primary key, v int unique)", "insert into k values (1, 1), (2, 2)")
	holder := w.mustBegin(t)
	mustExec(t, holder, "update k set v = 7 where k = 1")
	for _, tt := range []struct {
		name, before, query string
		kind                interlock.ErrorKind
		number              uint16
		held                bool
	}{
		{"constraint", "", "insert into k values (2, 9)", interlock.Definite, 1062, false},
		{"no such table", "", "select * from nowhere", interlock.Definite, 1146, false},
		{"no wait", "", "select * from k where k = 1 for update nowait", interlock.Retryable, 1205, true},
		{"lock timeout", "set innodb_lock_wait_timeout = 1", "update k set v = 8 where k = 1", interlock.Retryable, 1205, true},
		{"statement time", "set max_statement_time = 0.05", "select sleep(30)", interlock.Definite, 1969, false},
		{"killed", "", "kill connection_id()", interlock.Retryable, 1927, false},
		{"disk full", "", "begin not atomic signal sqlstate 'HY000' set mysql_errno = 1114; end", interlock.Retryable, 1114, false},
		{"too many locks", "", "begin not atomic signal sqlstate 'HY000' set mysql_errno = 1206; end", interlock.Retryable, 1206, false},
		{"out of memory", "", "begin not atomic signal sqlstate 'HY001' set mysql_errno = 1037; end", interlock.Retryable, 1037, false},
	} {
		x := open(t, w.url).mustBegin(t)
		if tt.before != "" {
			mustExec(t, x, tt.before)
		}
		err := x.Query(t.Context(), tt.query, nil, func(func(...any) error) error { return nil })
		t.Run(tt.name, func(t *testing.T) { wantKind(t, err, tt.kind, tt.number) })
		if errors.Is(err, interlock.ErrHeld) != tt.held {
			t.Errorf("%s: %v: is it held?", tt.name, err)
		}
		_ = x.Rollback(t.Context()) // a refused insert, too, has locked a row
	}
	testbed.OK(t, holder.Rollback(t.Context()))
	t.Run("changed since the snapshot", func(t *testing.T) {
		x := w.mustBegin(t)
		mustExec(t, x, "set session innodb_snapshot_isolation = 1")
		one[int](t, x, "select count(*) from k")
		w.do(t, "update k set v = 20 where k = 2")
		_, err := x.Exec(t.Context(), "update k set v = 21 where k = 2")
		wantKind(t, err, interlock.Retryable, 1020)
	})
}

// testFailedBefore continues after an error that undid a part of the transaction.
func testFailedBefore(t *testing.T, w world) {
	w.do(t, "create table f (k int primary key)", "insert into f values (1)")
	holder := w.mustBegin(t)
	mustExec(t, holder, "select * from f where k = 1 for update")
	for _, end := range []string{"commit", "statement"} {
		x := w.mustBegin(t)
		mustExec(t, x, "insert into f values (2)")
		_, err := x.Exec(t.Context(), "select * from f where k = 1 for update nowait")
		wantKind(t, err, interlock.Retryable, 1205)
		if end == "commit" {
			err = x.Commit(t.Context())
		} else {
			_, err = x.Exec(t.Context(), "insert into f values (3)")
		}
		wantKind(t, err, interlock.Definite, 0)
		_ = x.Rollback(t.Context())
		if n := w.text(t, "select count(*) from f"); n != "1" {
			t.Errorf("%s: %s rows", end, n)
		}
	}
}

func testEndOfSession(t *testing.T, w world) {
	w.do(t, "create table e (k int)")
	for _, next := range []string{"statement", "commit"} {
		x := w.mustBegin(t)
		mustExec(t, x, "insert into e values (1)")
		id := one[int64](t, x, "select connection_id()")
		w.do(t, fmt.Sprintf("kill %d", id))
		testbed.Eventually(t, "the session ends", bound, func() bool {
			return w.text(t, fmt.Sprintf("select count(*) from information_schema.processlist where id = %d", id)) == "0"
		})
		var err error
		if next == "commit" {
			err = x.Commit(t.Context())
		} else {
			_, err = x.Exec(t.Context(), "select 1")
		}
		// The server's last answer may be lost.
		if err == nil || interlock.Kind(err) == interlock.Definite || next == "commit" && interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("%s: %v (%v)", next, err, interlock.Kind(err))
		}
	}
	if n := w.text(t, "select count(*) from e"); n != "0" {
		t.Errorf("%s rows", n)
	}
}

func testClassify(t *testing.T, w world) {
	x := w.mustBegin(t)
	wantKind(t, x.Classify(fmt.Errorf("book: %w", &client.MySQLError{Number: 1213})), interlock.Retryable, 1213)
	wantKind(t, x.Classify(&client.MySQLError{Number: 1927}), interlock.Retryable, 1927)
	wantKind(t, x.Classify(&client.MySQLError{Number: 1062}), interlock.Definite, 1062)
	wantKind(t, x.Classify(client.ErrInvalidConn), interlock.Retryable, 0)
	for _, own := range []error{nil, errors.New("no money"), context.Canceled, sql.ErrNoRows,
		&interlock.Error{Op: "x", Kind: interlock.Bug, Err: client.ErrInvalidConn}} {
		if got := x.Classify(own); got != own {
			t.Errorf("%v became %v", own, got)
		}
	}
}

func mustBound(t *testing.T, x tx, d time.Duration) {
	t.Helper()
	testbed.OK(t, x.Bound(t.Context(), d, d))
}

const settings = `select concat_ws(' ', @@idle_transaction_timeout, @@idle_write_transaction_timeout,
	@@idle_readonly_transaction_timeout, @@max_statement_time, @@autocommit)`

func testSettings(t *testing.T, w world) {
	for _, tt := range []struct {
		options, inside, outside string
	}{
		{"", "7 7 7 7.900000 OFF", "0 0 0 0.000000 ON"},
		{"?idle_transaction_timeout=3&idle_write_transaction_timeout=60&max_statement_time=2", "3 7 3 2.000000 OFF", "3 60 0 2.000000 ON"},
		{"?idle_transaction_timeout=3", "3 3 3 7.900000 OFF", "3 0 0 0.000000 ON"}, // it also counted for transactions that write
	} {
		d := open(t, w.url+tt.options)
		d.SetMaxOpenConns(1)
		for end, finish := range map[string]func(tx) error{
			"commit":            func(x tx) error { return x.Commit(t.Context()) },
			"rollback":          func(x tx) error { return x.Rollback(t.Context()) },
			"a cancelled begin": nil,
		} {
			ctx, cancel := context.WithCancel(t.Context())
			x, err := mysql.DB(d.DB).Begin(ctx)
			testbed.OK(t, err)
			for _, limit := range []time.Duration{time.Minute, 7900 * time.Millisecond} { // the later one counts
				mustBound(t, x, limit)
			}
			if got := one[string](t, x, settings); got != tt.inside {
				t.Errorf("inside: %s, want %s", got, tt.inside)
			}
			if cancel(); finish == nil {
				err = x.Rollback(ctx)
			} else {
				err = finish(x)
			}
			if err != nil {
				t.Errorf("%s: %v", end, err)
			}
			if got := d.text(t, settings); got != tt.outside {
				t.Errorf("after %s: %s, want %s", end, got, tt.outside)
			}
		}
	}
}

// testUndone ignores a deadlock of statements that the package does not see.
func testUndone(t *testing.T, w world) {
	w.do(t, "create table u (k int primary key, v int)", "insert into u values (1, 0), (2, 0)")
	x, y := w.mustBegin(t), w.mustBegin(t)
	mustBound(t, x, bound)
	mustExec(t, y, "update u set v = 1 where k = 2", "insert into u values (11, 0), (12, 0), (13, 0)") // so that x is the victim
	mustExec(t, mysql.Tx(x.Native()), "update u set v = 1 where k = 1")
	blocked := make(chan error, 1)
	go func() {
		_, err := y.Exec(t.Context(), "update u set v = 2 where k = 1")
		blocked <- err
	}()
	testbed.Eventually(t, "it waits", bound, func() bool {
		return w.text(t, `select count(*) from information_schema.processlist
			where db = database() and id <> connection_id() and command = 'Query' and time_ms > 100`) == "1"
	})
	_, err := x.Native().Exec("update u set v = 2 where k = 2")
	wantKind(t, x.Classify(err), interlock.Retryable, 1213)
	testbed.OK(t, <-blocked)
	mustExec(t, mysql.Tx(x.Native()), "insert into u values (3, 0)")
	wantKind(t, x.Commit(t.Context()), interlock.Uncertain, 0)
	_ = y.Rollback(t.Context())
	if n := w.text(t, "select count(*) from u"); n != "2" {
		t.Errorf("%s rows: what followed was committed", n)
	}
}

// testImplicitCommit: statements before one that commits stay, and later ones do not.
func testImplicitCommit(t *testing.T, w world) {
	w.do(t, "create table ic (k int primary key)")
	x := w.mustBegin(t)
	mustBound(t, x, bound)
	mustExec(t, x, "insert into ic values (1)", "create table ic2 (k int primary key)", "insert into ic values (2)")
	wantKind(t, x.Commit(t.Context()), interlock.Uncertain, 0)
	if k := w.text(t, "select group_concat(k) from ic"); k != "1" {
		t.Errorf("rows %s", k)
	}
}

// TestAnswersToCommit ends a COMMIT while it waits. If the server gives up by itself, the
// transaction is undone; if the COMMIT is ended from outside, the outcome is unknown.
func TestAnswersToCommit(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	d := open(t, server.URL())
	d.do(t, "create table answered (k int)")
	for name, bind := range map[string]bool{"unbound": false, "bound": true} {
		t.Run(name, func(t *testing.T) {
			for _, tt := range []struct {
				name, before, during string
				kind                 interlock.ErrorKind
				number               uint16 // 0 means any, or none
			}{
				{"lock time-out", "set session lock_wait_timeout = 1", "", interlock.Retryable, 1205},
				{"query killed", "", "kill query %d", interlock.Uncertain, 1317},
				{"session killed", "", "kill connection %d", interlock.Uncertain, 0},
			} {
				t.Run(tt.name, func(t *testing.T) {
					x := d.mustBegin(t)
					if bind {
						mustBound(t, x, bound)
					}
					if tt.before != "" {
						mustExec(t, x, tt.before)
					}
					mustExec(t, x, "insert into answered values (1)")
					err := held(t, d, x, tt.during)
					if tt.number != 0 {
						wantKind(t, err, tt.kind, tt.number)
					} else if err == nil || interlock.Kind(err) != tt.kind {
						t.Errorf("%v (%v)", err, interlock.Kind(err))
					}
					testbed.Eventually(t, "nothing is left", bound, func() bool { return d.text(t, "select count(*) from answered") == "0" })
				})
			}
		})
	}
}

// held commits x while commits are blocked, runs another statement on the server as soon as it
// waits, and returns the answer.
func held(t *testing.T, d database, x tx, during string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	id := one[int64](t, x, "select connection_id()")
	lock, err := d.Conn(ctx)
	testbed.OK(t, err)
	defer lock.Close()
	_, err = lock.ExecContext(ctx, "flush tables with read lock")
	testbed.OK(t, err)
	defer lock.ExecContext(context.WithoutCancel(ctx), "unlock tables")
	answer := make(chan error, 1)
	go func() { answer <- x.Commit(ctx) }()
	if during != "" {
		testbed.Eventually(t, "the COMMIT waits", bound, func() bool {
			return d.text(t, "select count(*) from information_schema.processlist where id = ? and state like 'Waiting for%'", id) == "1"
		})
		d.do(t, fmt.Sprintf(during, id))
	}
	err = <-answer
	if strings.HasPrefix(during, "kill connection") { // its client may see that before its thread
		testbed.Eventually(t, "the session ends", bound, func() bool {
			return d.text(t, "select count(*) from information_schema.processlist where id = ?", id) == "0"
		})
	}
	return err
}

// TestAnswersToAtomically: an error before COMMIT is not done; one of COMMIT is as in TestAnswersToCommit.
// Nothing of it is left in the session.
func TestAnswersToAtomically(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	admin.do(t, "create table answered (k int primary key)")
	atomically := func(d database, statements string) (bool, *int64, error) {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		return mysql.DB(d.DB).(driver.Atomic).Atomically(ctx, driver.ReadCommitted, statements)
	}
	d := open(t, server.URL())
	d.SetMaxOpenConns(1)
	for _, tt := range []struct {
		name, statements string
		done             bool
		rows             string
	}{
		{"not done", "insert into answered values (1);", false, "0"},
		{"failed", "insert into answered values (1); set v_done = 1; insert into answered values (1);", false, "0"},
		{"done", "insert into answered values (1); set v_done = 1, v_value = 7;", true, "1"},
	} {
		done, value, err := atomically(d, tt.statements)
		if err != nil || done != tt.done || done != (value != nil && *value == 7) {
			t.Errorf("%s: %v, %v, %v", tt.name, done, value, err)
		}
		if n := d.text(t, "select concat(count(*), @@in_transaction) from answered"); n != tt.rows+"0" {
			t.Errorf("%s: rows, and whether a transaction is open: %s", tt.name, n)
		}
	}
	for _, tt := range []struct {
		options, during string
		kind            interlock.ErrorKind
		number          uint16
	}{
		{"?lock_wait_timeout=1", "", interlock.Retryable, 1205},
		{"", "kill query ", interlock.Uncertain, 1317},
		{"", "kill connection ", interlock.Uncertain, 0},
	} {
		t.Run("COMMIT with "+tt.during+tt.options, func(t *testing.T) {
			operator, err := admin.Conn(t.Context())
			testbed.OK(t, err)
			defer operator.Close()
			run := func(query string) {
				t.Helper()
				_, err := operator.ExecContext(context.WithoutCancel(t.Context()), query)
				testbed.OK(t, err)
			}
			defer run("unlock tables")
			run("do get_lock('gate', 20)") // until the session of the case before has ended
			answer := make(chan error, 1)
			d := open(t, server.URL()+tt.options)
			go func() {
				_, _, err := atomically(d, "insert into answered values (2); do get_lock('gate', 60); set v_done = 1;")
				answer <- err
			}()
			waits := func(state string) (id string) {
				t.Helper()
				testbed.Eventually(t, "it waits: "+state, bound, func() bool {
					id = admin.text(t, "select coalesce(max(id), '') from information_schema.processlist where state like ?", state)
					return id != ""
				})
				return id
			}
			waits("User lock")
			run("flush tables with read lock")
			run("do release_lock('gate')")
			if tt.during != "" {
				admin.do(t, tt.during+waits("Waiting for%"))
			}
			again := "insert into answered values (2)"
			if err := <-answer; tt.number != 0 {
				wantKind(t, err, tt.kind, tt.number)
			} else if again = "replace into answered values (2)"; err == nil || interlock.Kind(err) != tt.kind {
				t.Errorf("%v (%v)", err, interlock.Kind(err))
			}
			run("unlock tables")
			d.do(t, again) // it waits for a session that ends, which may have committed
			admin.do(t, "delete from answered where k = 2")
		})
	}
}

// TestCommitOnAServerThatBecameReadOnly: COMMIT is refused, and nothing is committed.
func TestCommitOnAServerThatBecameReadOnly(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	admin.do(t, "create table refused (k int)", "create user clerk identified by 'x'", "grant all on test.* to clerk")
	at := strings.Index(server.URL(), "@")
	x := open(t, "clerk:x"+server.URL()[at:]).mustBegin(t)
	mustExec(t, x, "insert into refused values (1)")
	admin.do(t, "set global read_only = 1")
	defer admin.do(t, "set global read_only = 0")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	wantKind(t, x.Commit(ctx), interlock.Definite, 1290)
	if n := admin.text(t, "select count(*) from refused"); n != "0" {
		t.Errorf("%s rows", n)
	}
}
