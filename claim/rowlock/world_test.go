package rowlock_test

import (
	"context"
	"testing"

	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) { testbed.Main(m) }

type body = func(ctx context.Context, tx driver.SQL, locked []string) error

// world is one database with five accounts of 100 and ten seats.
type world struct{ *databases.DB }

func TestDatabases(t *testing.T) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, world)
	}{
		{"rows are locked in the order of their keys, and no others", testOrder},
		{"no wait, a bounded wait, and skipping", testModes},
		{"the bound of a wait is for the statement only", testWaitIsForTheStatementOnly},
		{"any order of names, no deadlock, no lost update", testAnyOrder},
		{"a scope warns, and ends", testMaxHold},
		{"the waits for further rows are part of the scope", testMaxHoldBoundsWaits},
		{"the longest scope waits for further rows", testLongestHold},
		{"the server ends the wait of who is cut off", testCutOffWhileWaiting},
		{"who stands still is rolled back by the server", testStopped},
		{"errors and panics roll back", testRollsBack},
		{"integers are keys", testIntegerKeys},
		{"a lost commit is uncertain", testLostReply},
		{"a connection that is lost before leaves no doubt", testLostStatement},
		{"keys and names are checked", testTooMany},
	} {
		t.Run(tt.name, func(t *testing.T) {
			databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
				w := world{open(t)}
				w.Exec(t, "create table account (id varchar(20) primary key, balance bigint not null)",
					"create table seat (number bigint primary key)",
					"insert into account values ('a', 100), ('b', 100), ('c', 100), ('d', 100), ('e', 100)",
					"insert into seat values (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)")
				tt.test(t, w)
			})
		})
	}
}

// scope is rowlock.Tx.
func (w world) scope(ctx context.Context, r rowlock.Rows, keys []string, o *rowlock.Options, fn body) error {
	return rowlock.Tx(ctx, w.DB, r, keys, o, fn)
}

// in runs fn in a transaction and rolls it back.
func (w world) in(t *testing.T, fn func(ctx context.Context, tx driver.SQL)) {
	t.Helper()
	tx := w.Begun(t, driver.SessionIsolation)
	fn(t.Context(), tx)
	if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func (w world) lockTimeout(t *testing.T, tx driver.SQL) string {
	t.Helper()
	query := "select current_setting('lock_timeout')"
	if tx.Dialect() == driver.MariaDB {
		query = "select cast(@@innodb_lock_wait_timeout as char)"
	}
	value, err := databases.Value[string](t.Context(), tx, query)
	testbed.OK(t, err)
	return value
}

func (w world) balance(ctx context.Context, tx driver.SQL, id string) (int64, error) {
	parameter := map[driver.Dialect]string{driver.Postgres: "$1", driver.MariaDB: "?"}[tx.Dialect()]
	return databases.Value[int64](ctx, tx, "select balance from account where id = "+parameter, id)
}

func (w world) set(ctx context.Context, tx driver.SQL, id string, balance int64) error {
	query := "update account set balance = $2 where id = $1"
	args := []any{id, balance}
	if tx.Dialect() == driver.MariaDB {
		query, args = "update account set balance = ? where id = ?", []any{balance, id}
	}
	_, err := tx.Exec(ctx, query, args...)
	return err
}
