package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// failingDeletes refuses left deletions before they are sent.
type failingDeletes struct{ left, failed atomic.Int64 }

var errRefused = errors.New("refused")

func (f *failingDeletes) on(config *clientv3.Config) {
	intercept(config, func(_ context.Context, method string, call func() error) error {
		if strings.HasSuffix(method, "/DeleteRange") && f.left.Add(-1) >= 0 {
			f.failed.Add(1)
			return errRefused
		}
		return call()
	})
}

// known counts the contenders that a driver keeps.
func known(d *Driver) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.contenders)
}

// TestFailedReleaseIsForgotten once its key is gone, or the session with it, even
// if the release is not repeated.
func TestFailedReleaseIsForgotten(t *testing.T) {
	t.Parallel()
	for how, so := range map[string]func(t *testing.T, d *Driver, deletes *failingDeletes, operator *clientv3.Client){
		"its key is deleted at a heartbeat": func(_ *testing.T, _ *Driver, deletes *failingDeletes, _ *clientv3.Client) {
			deletes.left.Store(0)
		},
		"its lease is revoked": func(t *testing.T, d *Driver, _ *failingDeletes, operator *clientv3.Client) {
			_, err := operator.Revoke(bounded(t), d.session.id)
			testbed.OK(t, err)
		},
		"the next session deletes its key": func(t *testing.T, d *Driver, deletes *failingDeletes, _ *clientv3.Client) {
			d.session.end(errTimeRanOut)
			if known(d) == 0 {
				t.Fatal("forgotten while etcd may have its key")
			}
			r := ask("other", "me")
			mustAcquire(t, d, r)
			deletes.left.Store(0)
			mustRelease(t, d, r)
		},
	} {
		t.Run(how, func(t *testing.T) {
			server := serverFor(t)
			var deletes failingDeletes
			d, operator := open(t, dial(t, server.Addr(), deletes.on), nil), dial(t, server.Addr())
			r := ask("n", "me")
			mustAcquire(t, d, r)
			deletes.left.Store(1000)
			if err := d.Release(bounded(t), r.Name, r.Owner); !errors.Is(err, errRefused) {
				t.Fatal(err)
			}
			if known(d) != 1 {
				t.Fatal("a release whose outcome is unknown cannot be repeated")
			}
			so(t, d, &deletes, operator)
			testbed.Eventually(t, "it is forgotten", patience, func() bool { return known(d) == 0 })
			if left := keys(t, operator, "n/"); len(left) > 0 {
				t.Fatalf("forgotten, and in line are %q", left)
			}
		})
	}
}

// TestForeignValueGivesWay: another client wrote a value under the owner's key. The first error
// is that the place is lost. Acquiring again with the same owner takes a new one, whether or not
// the key was deleted meanwhile.
func TestForeignValueGivesWay(t *testing.T) {
	t.Parallel()
	for how, failures := range map[string]int64{"while it stands": 1, "when it was deleted": 0} {
		t.Run(how, func(t *testing.T) {
			server := serverFor(t)
			var deletes failingDeletes
			client, operator := dial(t, server.Addr(), deletes.on), dial(t, server.Addr())
			deaf := deafen(client)
			d := open(t, client, nil)
			lease := d.session.id
			deaf.deaf.Store(true) // or it would already be deleted
			mustPut(t, operator, slot("n/", lease, 0), "", clientv3.WithLease(lease))
			deletes.left.Store(failures)
			r := ask("n", "me")
			_, err := d.Acquire(bounded(t), r.Request)
			if interlock.Kind(err) != interlock.Retryable || !errors.Is(err, interlock.ErrLost) {
				t.Fatal(err)
			}
			testbed.Eventually(t, "the deletion was tried", patience, func() bool {
				return deletes.failed.Load() == failures && len(keys(t, operator, "n/")) == int(failures)
			})
			r.NoWait = true // it does not depend on the next deletion in the background
			g := mustAcquire(t, d, r)
			if left := g.Lease.Remaining(); left <= 0 || g.Token.Counter() < interlock.CounterAt(time.Now().Add(-time.Minute)) {
				t.Fatalf("token %d with %v left", g.Token, left)
			}
		})
	}
}

// TestForeignValueGivesWayToABatch, also a value older than what the session has seen of etcd.
func TestForeignValueGivesWayToABatch(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client, operator := dial(t, server.Addr()), dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, nil)
	deaf.deaf.Store(true)
	mustPut(t, operator, slot("n/", d.session.id, 0), "", clientv3.WithLease(d.session.id))
	mustAcquire(t, d, ask("later", "me"))
	if _, err := d.AcquireAll(bounded(t), askFor("me", "n", "m")); interlock.Kind(err) != interlock.Retryable || !errors.Is(err, interlock.ErrLost) {
		t.Fatal(err)
	}
	testbed.Eventually(t, "the value is deleted", patience/4, func() bool { return len(keys(t, operator, "n/")) == 0 })
	_, err := d.AcquireAll(bounded(t), askFor("me", "n", "m"))
	testbed.OK(t, err)
}

// TestLateWordOfADeletedValue: an answer from before our deletion of a foreign
// value arrives after the owner has asked again. It is ignored.
func TestLateWordOfADeletedValue(t *testing.T) {
	t.Parallel()
	d := &Driver{ctx: t.Context(), contenders: map[identity]*contender{}}
	s := d.sessionOf(0, &clientv3.LeaseGrantResponse{})
	defer s.cancel()
	contend := func() *contender {
		c := &contender{identity: identity{"n", "me"}, line: "n/", key: "n/me", session: s, changed: make(chan struct{}, 1)}
		s.queues.join(c)
		return c
	}
	foreign := place{key: "n/me", created: 5, base: unknownBase}
	first := contend()
	s.queues.list("n/", 5, []place{foreign})
	if first.state != dropped {
		t.Fatal("a value without a base was believed")
	}
	s.removed(8, "n/me")
	second := contend()
	s.queues.list("n/", 7, []place{foreign})
	if second.state != asking {
		t.Fatalf("an answer from before the deletion made it %d", second.state)
	}
	s.queues.list("n/", 9, []place{{key: "n/me", created: 9, base: 1, owner: "me"}})
	if second.state != holding || second.over.Load() {
		t.Fatalf("state %d, over %v", second.state, second.over.Load())
	}
}
