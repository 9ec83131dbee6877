package barrier_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
)

// testStopped: a process that is stopped within the function of a branch delays the next call of the
// branch by at most Table.Idle. When it wakes up its effects are not committed, and it finds the
// output of the other call.
func testStopped(t *testing.T, w world) {
	w.table.Idle = time.Second
	stopped, wake := make(chan struct{}, 2), make(chan struct{})
	awake := sync.OnceFunc(func() { close(wake) })
	defer awake()
	try := func(db driver.BeginnerAt[driver.SQL], id string, stops bool) (Hold, error) {
		first := stops
		return barrier.Do(calling(context.Background(), "b", branch.Try), db, w.table, seat, func(ctx context.Context, tx driver.SQL) (Hold, error) {
			h, err := hold(ctx, tx, id)
			if first {
				first = false
				stopped <- struct{}{}
				<-wake
			}
			return h, err
		})
	}
	var late Hold
	former := testbed.Later(t, bound, func() (err error) { late, err = try(w.DB, "former", true); return err })
	select {
	case <-stopped:
	case <-time.After(bound):
		t.Fatal("the function does not run")
	}
	var h Hold
	next := testbed.Later(t, bound, func() (err error) { h, err = try(w.Again(t), "next", false); return err })
	if ok(t, next()); h.ID != "next" {
		t.Errorf("the next call returned %q", h.ID)
	}
	awake()
	if ok(t, former()); late.ID != "next" {
		t.Errorf("the stopped call returned %q", late.ID)
	}
	if n := databases.One[int64](t, w.DB, `select count(*) from effect`); n != 1 {
		t.Errorf("%d effects", n)
	}
}
