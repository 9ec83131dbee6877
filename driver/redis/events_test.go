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
	if err != nil {
		t.Fatal(err)
	}
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

// asker is common to both drivers.
type asker interface {
	ask(ctx context.Context, r driver.Request) (driver.Lease, error)
	keeps() *keeper
}

type fencedAsker struct{ *Driver }

func (a fencedAsker) keeps() *keeper { return a.held }
func (a fencedAsker) ask(ctx context.Context, r driver.Request) (driver.Lease, error) {
	grant, err := a.Acquire(ctx, r)
	return grant.Lease, err
}

type plainAsker struct{ *Plain }

func (a plainAsker) keeps() *keeper { return a.held }
func (a plainAsker) ask(ctx context.Context, r driver.Request) (driver.Lease, error) {
	return a.Acquire(ctx, r)
}

// eachAsker runs test with a driver of each kind.
func eachAsker(t *testing.T, test func(t *testing.T, d asker)) {
	t.Run("queue", func(t *testing.T) { test(t, fencedAsker{openOn(t, testbed.Redis(t).Addr(), nil)}) })
	t.Run("plain", func(t *testing.T) {
		p, err := OpenPlain(t.Context(), dial(t, testbed.Redis(t).Addr()), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		test(t, plainAsker{p})
	})
}

// A renewal may be under way when its owner acquires again. Its result concerns the
// former grant, whose events have ended.
func TestRepeatedAcquireTakesOver(t *testing.T) {
	t.Parallel()
	eachAsker(t, func(t *testing.T, d asker) {
		var n told
		r := n.request("y")
		if _, err := d.ask(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		former := holdingOf(d.keeps(), r.Owner)
		lease, err := d.ask(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		d.keeps().settle(former, boottime.Now(), 0, extension{})
		if n.lost.Load() != 0 {
			t.Error("the present grant received the loss of a former one")
		}
		present := holdingOf(d.keeps(), r.Owner)
		if present == nil || present == former || lease.Remaining() <= 0 {
			t.Fatal("the former grant took the present one with it")
		}
		d.keeps().settle(present, boottime.Now(), 0, extension{})
		if n.lost.Load() != 1 || lease.Remaining() > 0 {
			t.Errorf("a loss was reported %d times", n.lost.Load())
		}
	})
}

// No event follows a failed repetition either; the former grant is renewed
// nevertheless.
func TestFailedRepetitionIsQuiet(t *testing.T) {
	t.Parallel()
	eachAsker(t, func(t *testing.T, d asker) {
		var n told
		r := n.request("z")
		lease, err := d.ask(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := d.ask(ended, r); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		h := holdingOf(d.keeps(), r.Owner)
		if h == nil {
			t.Fatal("it is not renewed any more")
		}
		before := lease.Remaining()
		d.keeps().settle(h, boottime.Now(), 0, extension{ours: true})
		if lease.Remaining() <= before {
			t.Fatal("the lease was not renewed")
		}
		d.keeps().settle(h, boottime.Now(), 0, extension{})
		if n.all() != 0 || lease.Remaining() > 0 {
			t.Fatalf("%d calls after the error, %v remain", n.all(), lease.Remaining())
		}
	})
}
