package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
			run("do get_lock('gate', 0)")
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
