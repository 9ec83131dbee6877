package mysql_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/rwlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// sweeping is a driver that removes rows.
type sweeping interface {
	driver.Fenced
	Sweep(ctx context.Context, after time.Duration) (int, error)
}

// sweptRows has the tables of rows, and the insert of one that was last used in 2021.
var sweptRows = map[string]struct{ table, old string }{
	"session": {"interlock_holder", "concat('old#r#', seq), '', '', seq, '2021-01-01', 1"},
	"table":   {"interlock_lease", "concat('old#r#', seq), '', seq, '2021-01-01', '2021-01-01'"},
}

// TestReadsLeaveNothing: each reader takes a lock with a unique name, and its row is removed, by one
// transaction for 500; rows that are held, or leases that were used recently, stay.
func TestReadsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			server := mariaDB(t)
			admin := open(t, server.URL())
			rows := sweptRows[m.name]
			d := m.mustOpen(t, server.URL(), &mysql.Options{TTL: time.Hour}).(sweeping)
			sweep := func(after time.Duration) (found int) {
				t.Helper()
				found, err := d.Sweep(t.Context(), after)
				testbed.OK(t, err)
				return found
			}
			left := func(want string) {
				t.Helper()
				if n := admin.text(t, `select count(*) from `+rows.table+` where name <> ''`); n != want {
					t.Errorf("%s rows are left, want %s", n, want)
				}
			}
			held := request("held")
			acquire(t, d, held)
			readers, err := rwlock.New(d, nil)
			testbed.OK(t, err)
			for range 20 {
				testbed.OK(t, readers.Read(t.Context(), "x", func(context.Context, *rwlock.ReadClaim) error { return nil }))
			}
			left("22") // the readers', the door's
			admin.do(t, fmt.Sprintf(`insert into %s select %s from seq_1_to_10000`, rows.table, rows.old))
			if session, ok := d.(*mysql.Driver); ok { // by itself
				testbed.OK(t, session.NextSweep(t.Context()))
				testbed.Eventually(t, "old rows are removed", bound, func() bool {
					return admin.text(t, `select count(*) from `+rows.table+` where name <> ''`) == "1"
				})
			} else {
				sweeps := 1
				for ; sweep(time.Hour) == mysql.SweepSize; sweeps++ {
				}
				if left("22"); sweeps != 10000/mysql.SweepSize+1 {
					t.Errorf("%d sweeps", sweeps)
				}
			}
			admin.do(t, `do sleep(0.001)`)
			sweep(0)
			left("1")
			for i := 0; m.name == "session" && i <= mysql.SweepGrants; i++ {
				r := request(fmt.Sprint("once/", i))
				acquire(t, d, r)
				release(t, d, r)
			}
			if n := admin.text(t, `select count(*) < 500 from `+rows.table); n != "1" {
				t.Error("names that were used once have left more than 500 rows")
			}
			testbed.OK(t, readers.Close(t.Context()))
		})
	}
}

// TestSweepSparesTheNext: a row whose lock was taken during its removal stays, and a name whose row
// was removed continues above its counter.
func TestSweepSparesTheNext(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			server := mariaDB(t)
			admin := open(t, server.URL())
			rows := sweptRows[m.name]
			d, other := m.mustOpen(t, server.URL(), nil).(sweeping), m.mustOpen(t, server.URL(), nil)
			last := map[string]int64{}
			done := make(chan error, 1)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go func() {
				for ctx.Err() == nil {
					if _, err := d.Sweep(context.Background(), 0); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for i := range 300 {
				name := fmt.Sprint("n", i%3)
				r := request(name)
				token := acquire(t, other, r).Token.Counter()
				if token <= last[name] {
					t.Fatalf("%s: counter %d after %d", name, token, last[name])
				}
				const ahead = 1_000_000 // a second: the clock alone would give lower ones
				last[name] = token + ahead
				admin.do(t, fmt.Sprintf(`update %s set counter = counter + %d where name = '%s'`, rows.table, ahead, name))
				if n := admin.text(t, `select count(*) from `+rows.table+` where name = ?`, name); n != "1" {
					t.Fatalf("%s rows of what is held", n)
				}
				release(t, other, r)
			}
			stop()
			testbed.OK(t, <-done)
		})
	}
}

// TestTokensRiseOverASweep: a row may be removed after a statement for several names has read the
// counter of removed rows, and before it takes this one.
func TestTokensRiseOverASweep(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	admin.do(t, "set global tx_isolation = 'READ-COMMITTED'")
	d := modes[1].mustOpen(t, server.URL(), nil).(*mysql.Table)
	ahead := interlock.CounterAt(time.Now().Add(time.Hour))
	admin.do(t, fmt.Sprintf("insert into interlock_lease values ('b', '', %d, '2021-01-01', '2021-01-01')", ahead),
		"create trigger slow before insert on interlock_lease for each row set @slept = if(new.name = 'a', sleep(2), 0)")
	counter := int64(0)
	taken := testbed.Later(t, bound, func() (err error) {
		counter, err = d.Take(t.Context(), "a", "b")
		return err
	})
	testbed.Eventually(t, "the statement is at its first row", bound, func() bool {
		return admin.text(t, "select count(*) from information_schema.processlist where state = 'User sleep'") == "1"
	})
	_, _ = d.Sweep(t.Context(), time.Hour) // it fails if the statement keeps it waiting
	if testbed.OK(t, taken()); counter <= ahead {
		t.Errorf("counter %d after %d", counter, ahead)
	}
}
