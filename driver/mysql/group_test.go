package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/leasetable"
	"github.com/interlock-dev/interlock/internal/leasetable/leasetabletest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// lockHolders makes the statements that take session locks wait.
func lockHolders(t *testing.T, admin database) (unlock func()) {
	t.Helper()
	c, err := admin.Conn(t.Context())
	if err == nil {
		_, err = c.ExecContext(t.Context(), "lock tables interlock_holder read")
	}
	testbed.OK(t, err)
	return func() {
		t.Helper()
		_, err := c.ExecContext(t.Context(), "unlock tables")
		testbed.OK(t, err)
		c.Close()
	}
}

// together makes a session driver do things that wait while the server is busy with a first one.
func together(t *testing.T, admin database, d *mysql.Driver, things ...func() error) []error {
	t.Helper()
	unlock := lockHolders(t, admin)
	first := make(chan error, 1)
	go func() {
		_, err := d.Acquire(t.Context(), driver.Request{Name: "first", Owner: "o"})
		first <- err
	}()
	testbed.Eventually(t, "the server is busy", bound, func() bool {
		return admin.text(t, "select count(*) from information_schema.processlist where state like 'Waiting for table%'") == "1"
	})
	answers := make([]chan error, len(things))
	for i, thing := range things {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- thing() }()
	}
	testbed.Eventually(t, "all wait", bound, func() bool { return d.Queued() == len(things) })
	unlock()
	testbed.OK(t, <-first)
	_ = d.Release(t.Context(), "first", "o")
	var all []error
	for _, answer := range answers {
		all = append(all, <-answer)
	}
	return all
}

func sessionOf(t *testing.T, server *testbed.Server) *mysql.Driver {
	t.Helper()
	return modes[0].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute}).(*mysql.Driver)
}

// TestCostOfManyAtOnce: concurrent acquires while the server is busy cost one statement
// for each 64, and so do releases.
func TestCostOfManyAtOnce(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), sessionOf(t, server)
	const many = 128
	var acquires, releases []func() error
	for i := range many {
		name := fmt.Sprint("n/", i)
		acquires = append(acquires, func() error {
			_, err := d.Acquire(context.WithoutCancel(t.Context()), driver.Request{Name: name, Owner: "o"})
			return err
		})
		releases = append(releases, func() error { return d.Release(context.WithoutCancel(t.Context()), name, "o") })
	}
	for _, things := range [][]func() error{acquires, releases} {
		replaces, selects := admin.status(t, "Com_replace_select"), admin.status(t, "Com_select")
		for _, err := range together(t, admin, d, things...) {
			testbed.OK(t, err)
		}
		replaces, selects = admin.status(t, "Com_replace_select")-replaces, admin.status(t, "Com_select")-selects
		t.Logf("%d inserts and %d selects for %d callers", replaces, selects, many)
		if replaces > 1+many/64 {
			t.Errorf("%d replaces for %d callers", replaces, many)
		}
	}
	if n := admin.text(t, "select count(*) from interlock_holder where is_used_lock(lock_name) is not null"); n != "0" {
		t.Errorf("%s locks are left", n)
	}
}

// TestAllocations bounds the allocations of an acquire and a release, in the driver and its client.
func TestAllocations(t *testing.T) {
	d := sessionOf(t, mariaDB(t))
	n := testing.AllocsPerRun(100, func() {
		_, err := d.Acquire(t.Context(), driver.Request{Name: "x", Owner: "o"})
		testbed.OK(t, err)
		testbed.OK(t, d.Release(t.Context(), "x", "o"))
	})
	if n > 22 { // 16, and some more with the race detector, which empties pools
		t.Errorf("%v allocations, want at most 22", n)
	}
}

// TestRefusedRowFailsAlone: a refused row does not fail others in its statement, and its lock, which
// was taken before, is released.
func TestRefusedRowFailsAlone(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), sessionOf(t, server)
	admin.do(t, "alter table interlock_holder add constraint check (owner <> 'unwanted')")
	try := func(name, owner string) func() error {
		return func() error {
			_, err := d.Acquire(context.WithoutCancel(t.Context()), driver.Request{Name: name, Owner: owner})
			return err
		}
	}
	answers := together(t, admin, d, try("a", "o"), try("b", "unwanted"), try("c", "o"))
	for i, want := range []bool{true, false, true} {
		if err := answers[i]; (err == nil) != want || err != nil && interlock.Kind(err) != interlock.Definite {
			t.Errorf("%d: %v (%v)", i, err, interlock.Kind(err))
		}
	}
	for name, want := range map[string]bool{"a": true, "b": false, "c": true} {
		lock := mysql.LockName("test", "interlock", name)
		if used := admin.text(t, "select is_used_lock(?) is not null", lock) == "1"; used != want {
			t.Errorf("%s is held: %v", name, used)
		}
		testbed.OK(t, d.Release(t.Context(), name, "o"))
		if user := admin.text(t, "select coalesce(is_used_lock(?), 0)", lock); user != "0" {
			t.Errorf("connection %s has %s after its release", user, name)
		}
	}
}

// TestFailedUndoEndsTheSession, which would take the locks once more. A user may send only so many
// statements: the second one that can open a session can send none after that of the two locks.
func TestFailedUndoEndsTheSession(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	sessionOf(t, server) // creates the tables
	admin.do(t, "alter table interlock_holder add constraint check (owner <> 'unwanted')")
	opened := 0
	for statements := 1; statements < 30 && opened < 2; statements++ {
		user := fmt.Sprint("app", statements)
		admin.do(t, fmt.Sprintf("create user %s@127.0.0.1", user),
			fmt.Sprintf("grant all on test.* to %s@127.0.0.1 with max_queries_per_hour %d", user, statements))
		d, err := mysql.Open(t.Context(), config(t, strings.Replace(server.URL(), "root@", user+"@", 1)), &mysql.Options{TTL: time.Minute})
		if err != nil {
			continue
		}
		opened++
		var tries []func() error
		for _, name := range []string{"a", "b"} {
			tries = append(tries, func() error {
				_, err := d.Acquire(context.WithoutCancel(t.Context()), driver.Request{Name: name, Owner: "unwanted"})
				return err
			})
		}
		for _, err := range together(t, admin, d, tries...) {
			if err == nil {
				t.Error("the row was not refused")
			}
		}
		testbed.Eventually(t, "nobody has a lock", bound, func() bool {
			return admin.text(t, "select concat(is_used_lock(?) is null, is_used_lock(?) is null)", mysql.LockName("test", "interlock", "a"),
				mysql.LockName("test", "interlock", "b")) == "11"
		})
		testbed.OK(t, d.Close(t.Context()))
	}
	if opened < 2 {
		t.Errorf("%d users could open a session", opened)
	}
}

func TestCostOfManyRowsAtOnce(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
	const many = 256
	reads, counts := int64(0), 0
	leasetabletest.CostOfManyAtOnce(t, d, many, func() int64 {
		switch counts++; counts {
		case 1: // before the acquires
			reads = admin.status(t, "Handler_read_key")
		case 2: // after them: each statement has read the counter of swept rows once
			if n := admin.status(t, "Handler_read_key") - reads; n > many/2 {
				t.Errorf("%d reads by a key for %d callers", n, many)
			}
		}
		return admin.status(t, "Com_insert_select") + admin.status(t, "Com_insert") + admin.status(t, "Com_update")
	})
	if n := admin.text(t, "select count(*) from interlock_lease where owner <> x'' and expires > utc_timestamp(6)"); n != "0" {
		t.Errorf("%s rows are held after their release", n)
	}
}

// TestReleasesShareStatements takes and releases names by one statement.
func TestReleasesShareStatements(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute}).(*mysql.Table)
	ask := func(name, owner string, free bool) *leasetable.Ask {
		return &leasetable.Ask{Request: driver.Request{Name: name, Owner: owner}, Free: free}
	}
	change := func(asks ...*leasetable.Ask) {
		t.Helper()
		testbed.OK(t, d.Change(t.Context(), asks...))
	}
	held := func(want string) {
		t.Helper()
		got := admin.text(t, "select coalesce(group_concat(name, '=', owner order by name), '') from interlock_lease where owner <> x'' and expires > utc_timestamp(6)")
		if got != want {
			t.Fatalf("held: %s, want %s", got, want)
		}
	}
	first := ask("a", "o1", false)
	change(first, ask("b", "o2", false))
	held("a=o1,b=o2")
	change(ask("a", "o1", true), ask("b", "another", true), ask("c", "o3", false), ask("d", "o4", true))
	held("b=o2,c=o3")
	change(ask("a", "former", true), ask("c", "o3", false)) // of a name that is free
	held("b=o2,c=o3")
	next := ask("a", "o5", false)
	change(next, ask("b", "o2", true))
	if held("a=o5,c=o3"); next.Row.Counter <= first.Row.Counter {
		t.Errorf("token %d after %d", next.Row.Counter, first.Row.Counter)
	}
}

// TestReleasedRowIsFreeAfterAStepBack: a released row is free, also if the server's clock steps back to
// before the release.
func TestReleasedRowIsFreeAfterAStepBack(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute}).(*mysql.Table)
	a, b := request("a"), request("b")
	acquire(t, d, a)
	release(t, d, a)
	acquire(t, d, b)
	testbed.OK(t, d.Change(t.Context(), &leasetable.Ask{Request: b, Free: true}, &leasetable.Ask{Request: request("c")}))
	admin.do(t, "update interlock_lease set since = since + interval 1 hour, expires = expires + interval 1 hour")
	for _, name := range []string{"a", "b"} {
		r := request(name)
		r.NoWait = true
		if _, err := d.Acquire(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
}

func TestLockedRowHoldsUpNobody(t *testing.T) {
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
	leasetabletest.CostOfManyAtOnce(t, d, 32, func() int64 { return 0 }) // the rows exist: new ones would wait for the gap
	leasetabletest.LockedRowHoldsUpNobody(t, d, func(name string) func() { return lockRow(t, admin, name) })
}

func TestLockedRowEndsNoOtherLease(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: 3 * time.Second})
	leasetabletest.LockedRowEndsNoOtherLease(t, d, func(name string) func() { return lockRow(t, admin, name) })
}

// TestLockedRowIsNoRefusal: a row that another transaction has locked for longer than the lock timeout of
// the pool's sessions may be free soon.
func TestLockedRowIsNoRefusal(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	d, err := mysql.OpenTable(t.Context(), open(t, server.URL()+"?innodb_lock_wait_timeout=0").DB, &mysql.Options{TTL: time.Minute})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	r := request("x")
	acquire(t, d, r)
	defer lockRow(t, admin, "x")()
	_, err = d.Acquire(testbed.Bounded(t), request("x"))
	for _, err := range []error{err, d.Release(testbed.Bounded(t), r.Name, r.Owner)} {
		if testbed.WantKind(t, err, interlock.Retryable, nil); errors.Is(err, interlock.ErrHeld) {
			t.Errorf("a refusal: %v", err)
		}
	}
}

// lockRow locks the row of a name in a transaction, which unlock ends.
func lockRow(t *testing.T, admin database, name string) (unlock func()) {
	t.Helper()
	tx := admin.mustBegin(t)
	mustExec(t, tx, "update interlock_lease set since = since where name = '"+name+"'")
	return func() { _ = tx.Rollback(t.Context()) }
}
