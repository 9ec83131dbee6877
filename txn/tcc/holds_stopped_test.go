package tcc_test

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// testStopped: a process that is stopped within Confirmed keeps the next confirmation
// waiting for no longer than Holds.Idle, and commits nothing when it wakes up.
func testStopped(t *testing.T, openDB func(testing.TB) *databases.DB) {
	const bound = 20 * time.Second
	in := open(t, openDB(t), "room")
	in.DB.Exec(t, `create table booking (id varchar(100))`)
	stopped, wake := make(chan struct{}, 1), make(chan struct{})
	former, next := in.holds(), in.holds()
	next.DB = in.DB.Again(t)
	book := func(ctx context.Context, tx driver.SQL, _ tcc.Want) error {
		_, err := tx.Exec(ctx, `insert into booking values ('1')`)
		return err
	}
	next.Confirmed = book
	former.Idle, former.Confirmed = time.Second, func(ctx context.Context, tx driver.SQL, w tcc.Want) error {
		err := book(ctx, tx, w)
		stopped <- struct{}{}
		<-wake
		return err
	}
	confirm := func(h tcc.Holds[driver.SQL]) func() error {
		return func() error {
			return in.do(context.Background(), h.Take(), "1", branch.Confirm, tcc.Want{}, time.Time{})
		}
	}
	ok(t, in.do(t.Context(), next.Take(), "1", branch.Try, tcc.Want{Item: "room", N: 2}, time.Now().Add(time.Hour)))
	late := testbed.Later(t, bound, confirm(former))
	select {
	case <-stopped:
	case <-time.After(bound):
		t.Fatal("Confirmed does not run")
	}
	err := testbed.Later(t, bound, confirm(next))
	failed := err()
	close(wake)
	ok(t, failed)
	if late() == nil {
		t.Error("the stopped process has committed")
	}
	if n := databases.One[int64](t, in.DB, `select count(*) from booking`); n != 1 {
		t.Errorf("%d bookings", n)
	}
}
