package mysql_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/leasetable/leasetabletest"
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
