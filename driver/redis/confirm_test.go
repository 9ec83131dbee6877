package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Acknowledged writes survive a kill of the server. The kernel keeps its data after
// a kill: whether it is on disk only the server reports (see TestFsyncCeases), and a
// power failure is not tested.
func TestFsync(t *testing.T) {
	t.Parallel()
	server := testbed.Valkey(t, "--appendonly", "yes", "--appendfsync", "everysec")
	client := dial(t, server.Addr()+"?fsync=true")
	d := openWith(t, client, nil)
	if g := d.Guarantees(); !g.ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Errorf("with WAITAOF: %+v", g)
	}
	without := openWith(t, With(client, Settings{}), nil)
	if g := without.Guarantees(); g.ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Errorf("without: %+v", g)
	}
	owner, grant := take(t, d, "held")
	raise := driver.Raise{Resource: "r", Token: grant.Token}
	testbed.OK(t, NewFence(client).Enter(t.Context(), raise))
	server.Restart()
	late := raise
	late.Token = tokenOf(t, grant.Token.Counter()-1, 0)
	var stale *interlock.StaleTokenError
	insist(t, "a stale write after the crash", func(ctx context.Context) error {
		if err := NewFence(client).Enter(ctx, late); !errors.As(err, &stale) {
			return err
		}
		return nil
	})
	if stale == nil {
		t.Error("a stale write was accepted after the crash")
	}
	insist(t, "release after the crash", func(ctx context.Context) error { return d.Release(ctx, "held", owner) })
}

// A waiter learns of its grant by a push or a heartbeat, which need no confirmation; the
// grant counts when a request of the waiter is confirmed. Many wait for one fsync
// together.
func TestFsyncOfWaiters(t *testing.T) {
	t.Parallel()
	server := testbed.Valkey(t, "--appendonly", "yes", "--appendfsync", "everysec")
	d := openWith(t, dial(t, server.Addr()+"?fsync=true"), nil)
	owner, first := take(t, d, "a")
	waiting := await(t, d, "a")
	release(t, d, "a", owner)
	if o := receive(t, waiting, bound); o.grant.Token <= first.Token {
		t.Errorf("token %v after %v", o.grant.Token, first.Token)
	}
}

// Servers that cannot confirm are refused before any write, by guards too. If a server
// ceases to confirm, the outcome is unknown.
func TestFsyncIsRefused(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		server *testbed.Server
		want   string
	}{
		"an old server":      {testbed.Redis(t, "--appendonly", "yes"), "unknown command"},
		"without appendonly": {testbed.Valkey(t), "appendonly is disabled"},
		"without fsync":      {testbed.Valkey(t, "--appendonly", "yes", "--appendfsync", "no"), "appendfsync is no"},
	} {
		client := dial(t, c.server.Addr()+"?fsync=true")
		_, err := Open(t.Context(), client, nil)
		enter := NewFence(client).Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, 1, 0)})
		for _, err := range []error{err, enter} {
			if interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if m, err := NewFence(client).Mark(t.Context(), "r"); err != nil || m.Token != 0 {
			t.Errorf("%s: the mark is %v, %v", what, m, err)
		}
	}
}

// Unconfirmed writes do not count.
func TestFsyncCeases(t *testing.T) {
	t.Parallel()
	server := testbed.Valkey(t, "--appendonly", "yes", "--appendfsync", "always")
	client, operator := dial(t, server.Addr()+"?fsync=true"), dial(t, server.Addr())
	d := openWith(t, client, nil)
	f := NewFence(client)
	raise := driver.Raise{Resource: "r", Token: tokenOf(t, 1, 0)}
	testbed.OK(t, f.Enter(t.Context(), raise))
	f.conn.evicts.checkedNow() // so that the next write meets the change
	mustDo(t, operator, "CONFIG", "SET", "appendfsync", "no")
	_, grant := d.Acquire(t.Context(), driver.Request{Name: "a", Owner: "me", NoWait: true})
	if interlock.Kind(grant) != interlock.Uncertain || !strings.Contains(grant.Error(), "not on disk") {
		t.Errorf("a grant: %v: %v", interlock.Kind(grant), grant)
	}
	mustDo(t, operator, "CONFIG", "SET", "appendonly", "no")
	f.conn.evicts.checkedNow()
	if err := f.Enter(t.Context(), raise); interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, errUnconfirmed) {
		t.Errorf("a write: %v: %v", interlock.Kind(err), err)
	}
	if err := f.Enter(t.Context(), raise); interlock.Kind(err) != interlock.Definite {
		t.Errorf("the next: %v: %v", interlock.Kind(err), err)
	}
}

// WAIT covers the writes of its own connection. A second request that finds its work
// done is not confirmed until a replica has the first one's writes.
func TestConfirmationOfWhatIsDone(t *testing.T) {
	t.Parallel()
	master := testbed.Redis(t)
	replica := testbed.Replica(t, master)
	first, second := dial(t, master.Addr()+"?replicas=1"), dial(t, master.Addr()+"?replicas=1")
	d := driver.Delivery{Consumer: "c", ID: "1", Hash: make([]byte, sha256.Size), Owner: "me"}
	if _, err := NewOnce(first).Claim(t.Context(), d, time.Minute); err != nil {
		t.Fatal(err)
	}
	replica.Pause()
	defer replica.Resume()
	if err := NewOnce(first).Done(t.Context(), d, time.Minute); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("no replica has the write: %v", err)
	}
	if _, err := NewOnce(second).Claim(t.Context(), d, time.Minute); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("what no replica has is found done: %v", err)
	}
}
