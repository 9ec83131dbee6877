package journal_test

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestTable(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		drivertest.RunJournal(t, drivertest.JournalHarness{
			Start: func(t *testing.T, exclusive bool) drivertest.JournalBackend {
				db := open(t)
				if exclusive {
					db = databases.Open(t, server(t, db.Dialect), db.Client)
				}
				db.Do(t, journal.NewTable(db, "").Create)
				return ledger{db}
			},
			Without: drivertest.LostReplies, // a statement without an answer ends its transaction: see TestLostCommit
		})
	}, databases.Pgx, databases.MariaInlined) // pgx sends arrays in binary; other tests of groups have them as text
}

func server(t *testing.T, d driver.Dialect) *testbed.Server {
	if d == driver.MariaDB {
		return testbed.MariaDB(t)
	}
	return testbed.Postgres(t)
}

// ledger is a journal in a database.
type ledger struct{ *databases.DB }

func (l ledger) Open(t *testing.T) (driver.Journal, error) {
	return journal.NewTable(l.Again(t), ""), nil
}

func (l ledger) Beside(t *testing.T) (driver.Journal, error) { return l.Open(t) }

func (l ledger) Faults() drivertest.Faults { return uncut{l.Server} }

// uncut breaks a server, and no path to it.
type uncut struct{ *testbed.Server }

func (uncut) Cut() {}

func (uncut) Heal() {}
