package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNoWaitingAfterAnError: the place stays, and changes between two calls of
// Acquire. The second call reports the change.
func TestNoWaitingAfterAnError(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d, operator := open(t, dial(t, server.Addr()), nil), dial(t, server.Addr())
	mustPut(t, operator, "n/first", "")
	mustPut(t, operator, "n/second", "")
	gone := errors.New("gone")
	r := ask("n", "me")
	ctx, cancel := context.WithCancelCause(bounded(t))
	done := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, r.Request)
		done <- err
	}()
	if p := testbed.Receive(t, r.Waiting, "word of waiting"); p.Ahead != 1 {
		t.Fatalf("received %+v", p)
	}
	cancel(gone)
	if err := testbed.Receive(t, done, "the end"); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	mustDelete(t, operator, "n/first")
	passed(t, d, operator)
	if len(r.Waiting) > 0 {
		t.Fatalf("received %+v after Acquire returned", <-r.Waiting)
	}
	again := begin(t, d, r)
	place := func() int { return testbed.Receive(t, r.Waiting, "the event Waiting of the repeated call").Ahead }
	for place() != 0 { // the first may be from before a read that is under way
	}
	mustDelete(t, operator, "n/second")
	if o := testbed.Receive(t, again, "the grant"); o.Err != nil {
		t.Fatal(o.Err)
	}
}

// TestNoLossAfterAnError: a holder whose repeated Acquire failed receives no more
// events.
func TestNoLossAfterAnError(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d, operator := open(t, dial(t, server.Addr()), nil), dial(t, server.Addr())
	r, witness := ask("n", "me"), ask("m", "witness")
	mustAcquire(t, d, r)
	mustAcquire(t, d, witness)
	watching(t, d, deletions)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Acquire(ctx, r.Request); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	mustDelete(t, operator, slot("n/", d.session.id, 0))
	mustDelete(t, operator, slot("m/", d.session.id, 0))
	testbed.Receive(t, witness.Lost, "word of the later loss")
	if len(r.Lost) > 0 {
		t.Fatalf("received %v after Acquire returned an error", <-r.Lost)
	}
}

// TestNoWaitingAfterRelease, also while its outcome is unknown.
func TestNoWaitingAfterRelease(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, operator := open(t, dial(t, proxy.Addr()), nil), dial(t, server.Addr())
	mustPut(t, operator, "n/first", "")
	mustPut(t, operator, "n/second", "")
	r := ask("n", "me")
	done := queue(t, d, r)
	proxy.Cut()
	if err := d.Release(bounded(t), r.Name, r.Owner); err == nil {
		t.Fatal("an unanswered release")
	}
	if o := testbed.Receive(t, done, "the end"); o.Err == nil {
		t.Fatal("granted")
	}
	mustDelete(t, operator, "n/first")
	proxy.Heal()
	testbed.Eventually(t, "its key is gone", patience, func() bool { return len(keys(t, operator, "n/")) == 1 })
	passed(t, d, operator)
	if len(r.Waiting) > 0 {
		t.Fatalf("received %+v after Release", <-r.Waiting)
	}
}
