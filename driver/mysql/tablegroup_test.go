package mysql_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/leasetable"
	"github.com/interlock-dev/interlock/internal/leasetable/leasetabletest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
	server := mariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: 3 * time.Second})
	leasetabletest.LockedRowEndsNoOtherLease(t, d, func(name string) func() { return lockRow(t, admin, name) })
}

// lockRow locks the row of a name in a transaction, which unlock ends.
func lockRow(t *testing.T, admin database, name string) (unlock func()) {
	t.Helper()
	tx := admin.mustBegin(t)
	mustExec(t, tx, "update interlock_lease set since = since where name = '"+name+"'")
	return func() { _ = tx.Rollback(t.Context()) }
}
