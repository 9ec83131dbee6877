package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/renewal"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// told counts the events of one request.
type told struct{ waiting, renewed, lost atomic.Int64 }

func (n *told) all() int64 { return n.waiting.Load() + n.renewed.Load() + n.lost.Load() }

func (n *told) request(name string) driver.Request {
	return driver.Request{Name: name, Owner: newOwner(), Events: driver.Events{
		Waiting: func(driver.Place) { n.waiting.Add(1) },
		Renewed: func(time.Duration, error) { n.renewed.Add(1) },
		Lost:    func(error) { n.lost.Add(1) },
	}}
}

// Here the answer to a heartbeat, with a new place, arrives after the end.
func TestNoEventAfterAnError(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "x")

	var n told
	r := n.request("x")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, r)
		ended <- err
	}()
	testbed.Eventually(t, "it waits", bound, func() bool { return n.waiting.Load() == 1 })
	d.waiting.mu.Lock()
	w := d.waiting.all[r.Owner]
	d.waiting.mu.Unlock()
	cancel()
	if err := <-ended; interlock.Kind(err) != interlock.Uncertain {
		t.Fatal(err)
	}
	d.waiting.heartbeatAnswered(w, boottime.Now(), reply{status: statusWaiting, ahead: 7})
	d.waiting.heartbeatAnswered(w, boottime.Now(), reply{status: statusGranted, counter: 1})
	if n.all() != 1 {
		t.Fatalf("%d calls after the error", n.all()-1)
	}

	release(t, d, "x", r.Owner)
	release(t, d, "x", owner)
}

// eachKind runs test with a driver of each kind, and its keeper.
func eachKind(t *testing.T, test func(t *testing.T, d driver.Fenced, held *renewal.Keeper)) {
	t.Run("queue", func(t *testing.T) {
		d := openOn(t, testbed.Redis(t).Addr(), nil)
		test(t, d, d.held)
	})
	t.Run("plain", func(t *testing.T) {
		p := plainOn(t, testbed.Redis(t).Addr(), nil)
		test(t, drivertest.Advisory(p), p.held)
	})
}

// A renewal may be under way when its owner acquires again. Its result concerns the former
// grant, whose events have ended. They end even if the repetition fails, and then the former
// grant is still renewed.
func TestRepeatedAcquireEndsEvents(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, d driver.Fenced, held *renewal.Keeper) {
		renewing, outcomes := make(chan struct{}, 10), make(chan renewal.Extension)
		held.Extend = func(context.Context, []*renewal.Holding) []renewal.Extension {
			renewing <- struct{}{}
			select {
			case e := <-outcomes:
				return []renewal.Extension{e}
			case <-t.Context().Done():
				return []renewal.Extension{{}}
			}
		}
		var n told
		acquire := func(ctx context.Context, r driver.Request) (driver.Lease, error) {
			r.Renew = time.Millisecond
			grant, err := d.Acquire(ctx, r)
			return grant.Lease, err
		}
		r := n.request("y")
		_, err := acquire(t.Context(), r)
		testbed.OK(t, err)
		testbed.Receive(t, renewing, "a renewal of the former grant")
		present, err := acquire(t.Context(), r)
		testbed.OK(t, err)
		outcomes <- renewal.Extension{}
		testbed.Receive(t, renewing, "a renewal of the present grant")
		if n.all() != 0 || present.Remaining() <= 0 {
			t.Errorf("%d events of the former grant, %v remain of the present one", n.all(), present.Remaining())
		}
		outcomes <- renewal.Extension{}
		testbed.Eventually(t, "the loss is reported", bound, func() bool { return n.lost.Load() == 1 && present.Remaining() <= 0 })

		n = told{}
		r = n.request("z")
		former, err := acquire(t.Context(), r)
		testbed.OK(t, err)
		testbed.Receive(t, renewing, "a renewal")
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := acquire(ended, r); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		outcomes <- renewal.Extension{Ours: true}
		testbed.Receive(t, renewing, "another renewal")
		outcomes <- renewal.Extension{}
		testbed.Eventually(t, "it is lost", bound, func() bool { return former.Remaining() <= 0 })
		if n.all() != 0 {
			t.Errorf("%d events after the error", n.all())
		}
	})
}
