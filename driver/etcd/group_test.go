package etcd

import (
	"fmt"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestCallsThatWaitShareARequest: one for the acquires, and one for the releases.
func TestCallsThatWaitShareARequest(t *testing.T) {
	t.Parallel()
	var count counter
	server := serverFor(t)
	d := open(t, dial(t, server.Addr(), count.on), nil)
	const names = 40
	grants := make([]driver.Grant, names)
	before := count.n.Load()
	drivertest.Together(t, &d.requests, names, func(i int) (err error) {
		grants[i], err = d.Acquire(bounded(t), driver.Request{Name: fmt.Sprint("n", i), Owner: "me"})
		return err
	})
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d requests for %d acquires", got, names)
	}
	operator := dial(t, server.Addr())
	for i, g := range grants {
		at, ok := d.Contender(fmt.Sprint("n", i), "me")
		reply, err := operator.Get(bounded(t), at.Key)
		if err != nil || !ok || len(reply.Kvs) != 1 || reply.Kvs[0].CreateRevision != at.CreateRevision || !g.Token.Valid() {
			t.Fatalf("%d: %v at %+v, %v", i, g, at, err)
		}
	}
	before = count.n.Load()
	drivertest.Together(t, &d.requests, names, func(i int) error { return d.Release(bounded(t), fmt.Sprint("n", i), "me") })
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d requests for %d releases", got, names)
	}
	if left := keys(t, operator, "n"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// TestCallsAboutOneLineAreNotSentTogether: the conditions of all are checked before the
// first is executed, so two owners would both find the line empty.
func TestCallsAboutOneLineAreNotSentTogether(t *testing.T) {
	t.Parallel()
	d := open(t, dial(t, serverFor(t).Addr()), nil)
	const owners = 5
	granted := make(chan string, owners)
	tokens := map[interlock.Token]bool{}
	drivertest.Together(t, &d.requests, owners, func(i int) error {
		go func() {
			r := ask("n", fmt.Sprint(i))
			if _, err := d.Acquire(bounded(t), r.Request); err != nil {
				t.Error(err)
			}
			granted <- r.Owner
		}()
		return nil
	})
	for range owners {
		owner := testbed.Receive(t, granted, "a grant")
		if len(granted) > 0 {
			t.Fatal("two hold at once")
		}
		d.mu.Lock()
		token := d.contenders[identity{"n", owner}].token
		d.mu.Unlock()
		if tokens[token] {
			t.Fatalf("token %d twice", token)
		}
		tokens[token] = true
		mustRelease(t, d, ask("n", owner))
	}
}

// TestRefusedTogetherAreSentAlone: a server may allow fewer operations in a transaction.
func TestRefusedTogetherAreSentAlone(t *testing.T) {
	t.Parallel()
	d := open(t, dial(t, fleeting(t, "--max-txn-ops=8").Addr()), nil)
	take := func(i int) error {
		_, err := d.Acquire(bounded(t), driver.Request{Name: fmt.Sprint("n", i), Owner: "me"})
		return err
	}
	drivertest.Together(t, &d.requests, 10, take)
}
