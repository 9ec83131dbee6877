package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// busy has every call wait until leave is called.
func busy(d *Driver) {
	d.requests.mu.Lock()
	defer d.requests.mu.Unlock()
	d.requests.underWay, d.requests.limit = mostUnderWay, time.Hour
}

func waitFor(t *testing.T, d *Driver, calls int) {
	t.Helper()
	testbed.Eventually(t, "the calls wait", patience, func() bool {
		d.requests.mu.Lock()
		defer d.requests.mu.Unlock()
		return len(d.requests.waiting) == calls
	})
}

// together runs calls of do that are sent when all of them wait.
func together(t *testing.T, d *Driver, n int, do func(i int) error) {
	t.Helper()
	busy(d)
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- do(i) }()
	}
	waitFor(t, d, n)
	d.requests.leave()
	for range n {
		if err := receive(t, errs, "an answer"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCallsThatWaitShareARequest: one for the acquires, and one for the releases.
func TestCallsThatWaitShareARequest(t *testing.T) {
	t.Parallel()
	var count counter
	server := serverFor(t)
	d := open(t, dial(t, server.Addr(), count.on), nil)
	const names = 40
	grants := make([]driver.Grant, names)
	before := count.n.Load()
	together(t, d, names, func(i int) (err error) {
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
	together(t, d, names, func(i int) error { return d.Release(bounded(t), fmt.Sprint("n", i), "me") })
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d requests for %d releases", got, names)
	}
	if left := keys(t, operator, "n"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// TestCallsAboutOneLineAreNotSentTogether: the conditions of all are checked before the
// first is carried out, so two owners would both find the line empty.
func TestCallsAboutOneLineAreNotSentTogether(t *testing.T) {
	t.Parallel()
	d := open(t, dial(t, serverFor(t).Addr()), nil)
	const owners = 5
	granted := make(chan string, owners)
	tokens := map[interlock.Token]bool{}
	together(t, d, owners, func(i int) error {
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
		owner := receive(t, granted, "a grant")
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
	together(t, d, 10, take)
	d.requests.mu.Lock()
	defer d.requests.mu.Unlock()
	if !d.requests.alone {
		t.Error("the next ones are sent together again")
	}
}

// TestCallsThatWaitNoLonger: what was not sent was not done.
func TestCallsThatWaitNoLonger(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), nil)
	busy(d)
	before := count.n.Load()
	answers := make(chan error, 1)
	acquire := func(ctx context.Context) {
		_, err := d.Acquire(ctx, driver.Request{Name: "n", Owner: "me"})
		answers <- err
	}
	ctx, cancel := context.WithCancel(bounded(t))
	go acquire(ctx)
	waitFor(t, d, 1)
	cancel()
	if err := receive(t, answers, "an answer"); interlock.Kind(err) != interlock.Definite || !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	go acquire(bounded(t))
	waitFor(t, d, 1)
	if err := d.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, answers, "an answer"); !errors.Is(err, interlock.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if got := count.n.Load() - before; got > 1 { // Close revokes the lease
		t.Errorf("%d requests", got)
	}
}

// TestNoCallWaitsForLong, also if what is under way has no answer.
func TestNoCallWaitsForLong(t *testing.T) {
	t.Parallel()
	d := open(t, dial(t, serverFor(t).Addr()), nil)
	d.requests.mu.Lock()
	d.requests.underWay = mostUnderWay
	d.requests.mu.Unlock()
	for i := range 3 {
		r := ask("n", fmt.Sprint(i))
		mustAcquire(t, d, r)
		mustRelease(t, d, r)
	}
}
