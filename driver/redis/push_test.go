package redis

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// A pushed grant is used before it is confirmed only if it is certain to last: if it ended
// the place of the latest answer, to a request sent a moment ago.
func TestPushIsBelieved(t *testing.T) {
	t.Parallel()
	waiting := func(place int64, sent boottime.Instant) func(*waiters, *waiter) {
		return func(ws *waiters, w *waiter) {
			ws.recordPlace(w, sent, reply{status: statusWaiting, place: place, left: -1})
		}
	}
	now := boottime.Now()
	old := now.Add(-2 * time.Second)
	for name, c := range map[string]struct {
		answers []func(*waiters, *waiter)
		renew   time.Duration
		ttl     time.Duration
		least   time.Duration
		message string
		want    boottime.Instant // start of the lease; 0 if it must be confirmed
	}{
		"at once":                 {answers: []func(*waiters, *waiter){waiting(7, now)}, message: "9 7 me", want: now},
		"after a heartbeat":       {answers: []func(*waiters, *waiter){waiting(7, old), waiting(7, now)}, message: "9 7 me", want: now},
		"before the answer":       {message: "9 7 me"},
		"long after the answer":   {answers: []func(*waiters, *waiter){waiting(7, old)}, message: "9 7 me"},
		"of a former place":       {answers: []func(*waiters, *waiter){waiting(7, old), waiting(8, now)}, message: "9 7 me"},
		"an answer that was late": {answers: []func(*waiters, *waiter){waiting(8, old), waiting(7, now)}, message: "9 8 me"},
		"not renewed":             {answers: []func(*waiters, *waiter){waiting(7, now)}, renew: -1, message: "9 7 me"},
		"too short a lease":       {answers: []func(*waiters, *waiter){waiting(7, now)}, least: acceptFor / 2, message: "9 7 me"},
		"a short lease":           {answers: []func(*waiters, *waiter){waiting(7, now)}, ttl: acceptFor, message: "9 7 me"},
	} {
		t.Run(name, func(t *testing.T) {
			ws := newWaiters(&Driver{keyspace: &keyspace{conn: newConn(nil), ttl: DefaultTTL}})
			w := ws.enter(driver.Request{Name: "x", Owner: "me", Renew: c.renew, TTL: c.ttl, MinLease: c.least}, "x")
			for _, answer := range c.answers {
				answer(ws, w)
			}
			ws.handlePush(c.message)
			n, _, _ := w.read()
			if want := c.want > 0; n.granted != want || n.mode != refresh {
				t.Fatalf("%+v, want granted %v", n, want)
			}
			if n.granted && (n.sent != c.want || n.lease != acceptFor || n.counter != 9) {
				t.Errorf("%+v, want a lease of %v from %v", n, acceptFor, c.want)
			}
		})
	}
	ws := newWaiters(&Driver{keyspace: &keyspace{conn: newConn(nil), ttl: DefaultTTL}})
	w := ws.enter(driver.Request{Name: "x", Owner: "me"}, "x")
	for _, message := range []string{"", "me", "9 me", "9 x me", "x 9 me", "9 7 you", "9 7 "} {
		ws.handlePush(message)
		if _, _, unread := w.read(); unread {
			t.Errorf("%q was taken for a push", message)
		}
	}
}
