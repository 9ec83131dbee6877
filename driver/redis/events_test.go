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

// Here the answers to requests sent before the end arrive after it: that of a
// heartbeat with a new place, and that of a renewal.
func TestNoEventAfterAnErrorOrARelease(t *testing.T) {
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
	grant, err := d.Acquire(t.Context(), r)
	testbed.OK(t, err)
	h := holdingOf(d.held, r.Owner)
	d.held.settle(h, boottime.Now(), 0, extension{ours: true})
	if n.renewed.Load() != 1 || grant.Lease.Remaining() <= 0 {
		t.Fatal("a renewal is not reported while it is held")
	}
	release(t, d, "x", r.Owner)
	d.held.settle(h, boottime.Now(), 0, extension{ours: true})
	d.held.settle(h, boottime.Now(), 0, extension{})
	d.held.settle(h, boottime.Now(), 0, extension{err: errReply})
	if n.all() != 2 {
		t.Fatalf("%d calls after the release", n.all()-2)
	}
}

// A release may come while a loss is reported. It must find the holding to stopEvents it,
// so the holding is removed after the report, not before.
func TestLossIsToldBeforeItIsForgotten(t *testing.T) {
	t.Parallel()
	k := newKeeper(nil, time.Minute)
	calls := 0
	r := driver.Request{Name: "x", Owner: "me", Events: driver.Events{Lost: func(error) {
		if calls++; holdingOf(k, "me") == nil {
			t.Error("a release would not find it")
		}
	}}}
	k.add(r, "x", boottime.Now())
	h := holdingOf(k, "me")
	k.settle(h, boottime.Now(), 0, extension{})
	k.settle(h, boottime.Now(), 0, extension{})
	if calls != 1 || holdingOf(k, "me") != nil {
		t.Fatalf("reported %d times, removed %v", calls, holdingOf(k, "me") == nil)
	}
}

func holdingOf(k *keeper, owner string) *holding {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held[owner]
}

// eachKind runs test with a driver of each kind, and its keeper.
func eachKind(t *testing.T, test func(t *testing.T, d driver.Fenced, held *keeper)) {
	t.Run("queue", func(t *testing.T) {
		d := openOn(t, testbed.Redis(t).Addr(), nil)
		test(t, d, d.held)
	})
	t.Run("plain", func(t *testing.T) {
		p := plainOn(t, testbed.Redis(t).Addr(), nil)
		test(t, drivertest.Advisory(p), p.held)
	})
}

// A renewal may be under way when its owner acquires again. Its result concerns the
// former grant, whose events have ended.
func TestRepeatedAcquireTakesOver(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, d driver.Fenced, held *keeper) {
		var n told
		r := n.request("y")
		_, err := d.Acquire(t.Context(), r)
		testbed.OK(t, err)
		former := holdingOf(held, r.Owner)
		grant, err := d.Acquire(t.Context(), r)
		testbed.OK(t, err)
		held.settle(former, boottime.Now(), 0, extension{})
		if n.lost.Load() != 0 {
			t.Error("the present grant received the loss of a former one")
		}
		present := holdingOf(held, r.Owner)
		if present == nil || present == former || grant.Lease.Remaining() <= 0 {
			t.Fatal("the former grant took the present one with it")
		}
		held.settle(present, boottime.Now(), 0, extension{})
		if n.lost.Load() != 1 || grant.Lease.Remaining() > 0 {
			t.Errorf("a loss was reported %d times", n.lost.Load())
		}
	})
}

// No event follows a failed repetition either; the former grant is renewed
// nevertheless.
func TestFailedRepetitionIsQuiet(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, d driver.Fenced, held *keeper) {
		var n told
		r := n.request("z")
		grant, err := d.Acquire(t.Context(), r)
		testbed.OK(t, err)
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := d.Acquire(ended, r); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		h := holdingOf(held, r.Owner)
		if h == nil {
			t.Fatal("it is not renewed any more")
		}
		before := grant.Lease.Remaining()
		held.settle(h, boottime.Now(), 0, extension{ours: true})
		if grant.Lease.Remaining() <= before {
			t.Fatal("the lease was not renewed")
		}
		held.settle(h, boottime.Now(), 0, extension{})
		if n.all() != 0 || grant.Lease.Remaining() > 0 {
			t.Fatalf("%d calls after the error, %v remain", n.all(), grant.Lease.Remaining())
		}
	})
}
