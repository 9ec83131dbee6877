package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNoWaitingAfterAnError: the place is left behind, and changes between two
// calls of Acquire. The second call returns the change.
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
	if p := receive(t, r.waiting, "word of waiting"); p.Ahead != 1 {
		t.Fatalf("received %+v", p)
	}
	cancel(gone)
	if err := receive(t, done, "the end"); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	mustDelete(t, operator, "n/first")
	passed(t, d, operator)
	if len(r.waiting) > 0 {
		t.Fatalf("received %+v after Acquire returned", <-r.waiting)
	}
	again := acquiring(t, d, r)
	if p := receive(t, r.waiting, "word of waiting to who asks again"); p.Ahead != 0 {
		t.Fatalf("received %+v", p)
	}
	mustDelete(t, operator, "n/second")
	if o := receive(t, again, "the grant"); o.err != nil {
		t.Fatal(o.err)
	}
}

// acquiring runs an Acquire in the background.
func acquiring(t *testing.T, d *Driver, r request) <-chan outcome {
	done, ctx := make(chan outcome, 1), bounded(t)
	go func() {
		g, err := d.Acquire(ctx, r.Request)
		done <- outcome{g, err}
	}()
	return done
}

// TestNoLossAfterAnError: a holder that asked again and got an error receives
// no more events.
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
	receive(t, witness.lost, "word of the later loss")
	if len(r.lost) > 0 {
		t.Fatalf("received %v after Acquire returned an error", <-r.lost)
	}
}

// TestNoWaitingAfterRelease, also while its outcome is not known.
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
		t.Fatal("a release that nobody answered")
	}
	if o := receive(t, done, "the end"); o.err == nil {
		t.Fatal("granted")
	}
	mustDelete(t, operator, "n/first")
	proxy.Heal()
	testbed.Eventually(t, "its key is gone", patience, func() bool { return len(keys(t, operator, "n/")) == 1 })
	passed(t, d, operator)
	if len(r.waiting) > 0 {
		t.Fatalf("received %+v after Release", <-r.waiting)
	}
}
