package renewal

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// request counts its events.
func request(events *int) driver.Request {
	return driver.Request{Name: "x", Owner: "me", Events: driver.Events{
		Renewed: func(time.Duration, error) { *events++ },
		Lost:    func(error) { *events++ },
	}}
}

func (k *Keeper) settleAll(h *Holding, all ...Extension) {
	for _, e := range all {
		k.settle(h, boottime.Now(), 0, e)
	}
}

var each = []Extension{{Ours: true}, {Err: errors.New("no answer")}, {}}

// No event follows a release, a repeated request or a loss, and no former holding affects the
// present one.
func TestEventsEnd(t *testing.T) {
	k, events := New(Config{TTL: time.Minute}), 0
	k.Add(request(&events), boottime.Now())
	former := k.held["me"]
	if k.settleAll(former, each[:2]...); events != 2 {
		t.Errorf("%d events while it is held, want 2", events)
	}
	k.StopEvents("me")
	lease := k.Add(request(&events), boottime.Now())
	present := k.held["me"]
	if k.settleAll(former, each...); events != 2 || k.held["me"] != present || lease.Remaining() <= 0 {
		t.Errorf("%d events, want 2; %v remain of the present lease", events, lease.Remaining())
	}
	if k.settleAll(present, Extension{}, Extension{}); events != 3 || k.Len() != 0 || lease.Remaining() > 0 {
		t.Errorf("%d events after a loss, want 3; %v remain", events, lease.Remaining())
	}
	k.Add(request(&events), boottime.Now())
	released := k.held["me"]
	k.Remove("me")
	if k.settleAll(released, each...); events != 3 || !released.IsReleased() {
		t.Errorf("%d events after a release, want 3", events)
	}
	k.Add(request(&events), boottime.Now().Add(-time.Hour))
	if k.settleAll(k.held["me"], Extension{}); events != 3 {
		t.Error("the loss of an expired lease is reported")
	}
}

// A release may come while a loss is reported. It must find the holding to stop its events.
func TestLossIsReportedBeforeItIsForgotten(t *testing.T) {
	k, calls := New(Config{TTL: time.Minute}), 0
	r := driver.Request{Name: "x", Owner: "me", Events: driver.Events{Lost: func(error) {
		if calls++; k.Len() == 0 {
			t.Error("a release would not find it")
		}
	}}}
	k.Add(r, boottime.Now())
	if k.settleAll(k.held["me"], Extension{}); calls != 1 || k.Len() != 0 {
		t.Errorf("reported %d times, %d leases are left", calls, k.Len())
	}
}
