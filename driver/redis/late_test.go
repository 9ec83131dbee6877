package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// An abandoned request may be executed after a later one of its owner was answered
// "held". Its grant is then unused: it costs others at most the TTL, or a release,
// and no token is granted twice.
func TestLateRequestIsNotKept(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	for _, mode := range []string{noWait, enqueue} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := testbed.Redis(t)
			d := openOn(t, server.Addr(), &Options{TTL: ttl})
			r, late := refuse(t, d, mode)
			if state := show(t, d, "x"); state.Holder == nil || state.Holder.Owner != r.Owner || late.status != statusGranted {
				t.Fatalf("the late request got %+v: %+v", late, state)
			}
			began := time.Now()
			owner, grant := take(t, d, "x")
			took := time.Since(began)
			t.Logf("granted %v later", took.Round(time.Millisecond))
			if took > ttl+heartbeat || grant.Token.Counter() <= late.counter {
				t.Errorf("after %v: token %v, the late request got the counter %d", took, grant.Token, late.counter)
			}
			release(t, d, "x", owner)
		})
	}
	t.Run("released", func(t *testing.T) {
		t.Parallel()
		server := testbed.Redis(t)
		d := openOn(t, server.Addr(), nil)
		r, _ := refuse(t, d, noWait)
		release(t, d, "x", r.Owner)
		if state := show(t, d, "x"); state.Holder != nil {
			t.Fatalf("after the release it is held by %+v", state.Holder)
		}
	})
}

// refuse lets an owner get the answer that x is held, and then executes its earlier
// request of the mode on the free name.
func refuse(t *testing.T, d *Driver, mode string) (driver.Request, reply) {
	t.Helper()
	owner, _ := take(t, d, "x")
	r := driver.Request{Name: "x", Owner: newOwner(), NoWait: true}
	if _, err := d.Acquire(t.Context(), r); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	release(t, d, "x", owner)
	late, err := d.contend(t.Context(), newWaiter(r, "x"), mode)
	testbed.OK(t, err)
	return r, late
}
