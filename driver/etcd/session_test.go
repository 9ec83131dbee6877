package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestStoreThatWentBackEndsTheSession: an answer with a revision below known ones
// comes from another store, such as a restored backup in which the lease still
// lives.
func TestStoreThatWentBackEndsTheSession(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, &Options{TTL: 2 * time.Second})
	for _, noticedBy := range []string{"a request", "a reading"} {
		held := ask("held", noticedBy)
		mustAcquire(t, d, held)
		s := d.session
		d.mu.Lock()
		s.queues.highest += 1000 // as if it had been received
		d.mu.Unlock()
		if noticedBy == "a reading" {
			deaf.deaf.Store(true)
		} else if _, err := d.Acquire(bounded(t), ask("n", "me").Request); !errors.Is(err, interlock.ErrSessionEnded) || interlock.Kind(err) != interlock.Retryable {
			t.Fatal(err)
		}
		if cause := testbed.Receive(t, held.Lost, "the loss, noticed by "+noticedBy); !errors.Is(cause, interlock.ErrSessionEnded) {
			t.Fatal(cause)
		}
		deaf.deaf.Store(false)
		mustRelease(t, d, held)
		if r := ask("n", "me"); mustAcquire(t, d, r).Token == 0 || !replaced(d, s.id) {
			t.Fatal("the session has not ended")
		} else {
			mustRelease(t, d, r)
		}
	}
}

// TestNoWaitAfterTheTimeRanOut: the session expired here while etcd still keeps the lease. The owner's
// old key must not refuse the owner.
func TestNoWaitAfterTheTimeRanOut(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d, r := open(t, client, nil), ask("n", "me")
	before := mustAcquire(t, d, r)
	d.session.end(errTimeRanOut)
	r.NoWait = true
	if after := mustAcquire(t, d, r); after.Token <= before.Token || len(keys(t, client, "n/")) != 1 {
		t.Fatalf("token %d after %d, in line are %q", after.Token, before.Token, keys(t, client, "n/"))
	}
	other := ask("n", "other")
	other.NoWait = true
	if _, err := d.Acquire(bounded(t), other.Request); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	mustRelease(t, d, r)
}

// TestPlaceOfAnOutdatedSessionIsRemoved: the session expired here while etcd still
// keeps the lease, and the owner acquires again. Its old key would precede the new
// one.
func TestPlaceOfAnOutdatedSessionIsRemoved(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	operator := dial(t, server.Addr())
	d := open(t, dial(t, proxy.Addr()), &Options{TTL: 2 * time.Second})
	mustPut(t, operator, "n/foreign", "")
	r := ask("n", "me")
	done := queue(t, d, r)
	proxy.DropReplies()
	if o := testbed.Receive(t, done, "the waiter"); !errors.Is(o.Err, interlock.ErrSessionEnded) || interlock.Kind(o.Err) != interlock.Retryable {
		t.Fatalf("time ran out, and the waiter got: %v", o.Err)
	}
	if left := keys(t, operator, "n/"); len(left) != 2 {
		t.Fatalf("in line are %q, so this proves nothing", left)
	}
	proxy.Heal()
	testbed.Eventually(t, "it is in line again, once", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := d.Acquire(ctx, r.Request)
		return interlock.Kind(err) == interlock.Uncertain && len(r.Waiting) > 0
	})
	if left := keys(t, operator, "n/"); len(left) != 2 {
		t.Fatalf("in line are %q", left)
	}
}
