package redis

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// queued returns the number of waiters for name.
func queued(t *testing.T, operator rueidis.Client, name string) int64 {
	t.Helper()
	return number(t, operator, "ZCARD", keysOf(name).queue)
}

// A waiter that leaves is removed at once, not after a time of silence.
func TestReleaseLeavesTheQueue(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	take(t, d, "x")
	ctx, cancel := context.WithCancel(t.Context())
	placed, done := make(chan struct{}), make(chan error, 1)
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Waiting: func(driver.Place) { close(placed) }}}
	go func() {
		_, err := d.Acquire(ctx, r)
		done <- err
	}()
	<-placed
	cancel()
	<-done
	release(t, d, "x", r.Owner)
	if n := queued(t, operator, "x"); n != 0 {
		t.Fatalf("%d still wait", n)
	}
	if n, err := raw(t, operator, "HLEN", keysOf("x").wait).AsInt64(); n != 0 || err != nil {
		t.Fatalf("%d are still known, %v", n, err)
	}
}

// A waiter whose place is lost takes a new one: after a late push, and after a
// heartbeat.
func TestLostPlaceIsTakenAgain(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(*Driver, string){
		"push": func(d *Driver, owner string) { d.waiting.handlePush("1 1 " + owner) }, "heartbeat": func(*Driver, string) {},
	} {
		t.Run(name, func(t *testing.T) { losePlace(t, late) })
	}
}

func losePlace(t *testing.T, late func(d *Driver, owner string)) {
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "x")
	waiting := await(t, d, "x")
	k := keysOf("x")
	contenders, err := raw(t, operator, "ZRANGE", k.queue, "0", "-1").AsStrSlice()
	if err != nil || len(contenders) != 1 {
		t.Fatal(contenders, err)
	}
	mustDo(t, operator, "DEL", k.queue, k.wait)
	late(d, contenders[0])
	testbed.Eventually(t, "it has a place again", bound, func() bool { return queued(t, operator, "x") == 1 })
	release(t, d, "x", owner)
	release(t, d, "x", receive(t, waiting, bound).owner)
}

// A released lease is not renewed, and no loss is reported.
func TestReleasedLeaseIsForgotten(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), &Options{TTL: 300 * time.Millisecond})
	lost := make(chan error, 1)
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Lost: func(cause error) { lost <- cause }}}
	if _, err := d.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	release(t, d, "x", r.Owner)
	renewed := make(chan struct{}, 64)
	if _, err := d.Acquire(t.Context(), driver.Request{Name: "y", Owner: newOwner(), Events: driver.Events{
		Renewed: func(time.Duration, error) { renewed <- struct{}{} }}}); err != nil {
		t.Fatal(err)
	}
	for range 3 { // by then the first lease would have been renewed, too
		select {
		case <-renewed:
		case <-time.After(bound):
			t.Fatal("no renewal")
		}
	}
	select {
	case cause := <-lost:
		t.Fatalf("a lease that was released was lost: %v", cause)
	default:
	}
}

// The answer to a renewal may arrive after the release that overtook it.
func TestLateAnswerAfterReleaseIsNotTold(t *testing.T) {
	t.Parallel()
	k := newKeeper(nil, time.Minute)
	told := 0
	r := driver.Request{Name: "x", Owner: "me", Events: driver.Events{
		Lost: func(error) { told++ }, Renewed: func(time.Duration, error) { told++ }}}
	k.add(r, "x", boottime.Now())
	h := k.held["me"]
	k.settle(h, boottime.Now(), 0, extension{ours: true})
	if told != 1 {
		t.Fatalf("%d calls for a renewal", told)
	}
	k.remove("me")
	k.settle(h, boottime.Now(), 0, extension{ours: true})
	k.settle(h, boottime.Now(), 0, extension{})
	if told != 1 {
		t.Fatalf("%d calls after the release", told-1)
	}
}
