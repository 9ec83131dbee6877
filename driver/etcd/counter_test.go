package etcd

import (
	"context"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// slack is the headroom of a base, and the few revisions since.
var slack = driver.Headroom.Microseconds() + 1000

func token(t *testing.T, d *Driver, lock, owner string) interlock.Token {
	t.Helper()
	r := ask(lock, owner)
	g := mustAcquire(t, d, r)
	mustRelease(t, d, r)
	return g.Token
}

// ahead returns Options of a process whose clock is ahead by d.
func ahead(d time.Duration) *Options {
	return &Options{Now: func() time.Time { return time.Now().Add(d) }}
}

// TestBaseFollowsTheClockOfTheSession, and does not fall with it.
func TestBaseFollowsTheClockOfTheSession(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	now := time.Now().Add(2 * time.Hour)
	clock := func() time.Time { return now }
	first := token(t, open(t, dial(t, server.Addr()), &Options{Now: clock}), "n", "a")
	if floor := interlock.CounterAt(now); first.Counter() < floor || first.Counter() > floor+slack {
		t.Fatalf("counter %d, want %d and the few revisions since", first.Counter(), floor)
	}
	now = now.Add(-time.Hour)
	second := token(t, open(t, dial(t, server.Addr()), &Options{Now: clock}), "n", "a")
	if second <= first || second.Counter() > first.Counter()+slack {
		t.Fatalf("counter %d after %d, with a clock that went back", second.Counter(), first.Counter())
	}
	now = now.Add(2 * time.Hour)
	third := token(t, open(t, dial(t, server.Addr()), &Options{Now: clock}), "n", "a")
	if third.Counter() < interlock.CounterAt(now) {
		t.Fatalf("counter %d is below the clock", third.Counter())
	}
}

// TestTokenOfAWaiterDoesNotChange when the base is raised after it, and later
// waiters still get higher tokens.
func TestTokenOfAWaiterDoesNotChange(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	a := open(t, dial(t, server.Addr()), nil)
	holder, waiter := ask("n", "holder"), ask("n", "waiter")
	first := mustAcquire(t, a, holder)
	done := queue(t, a, waiter)
	b := open(t, dial(t, server.Addr()), ahead(time.Hour)) // raises the base
	last := ask("n", "last")
	lastDone := queue(t, b, last)
	mustRelease(t, a, holder)
	second := testbed.Receive(t, done, "the waiter")
	state, err := b.Lock(t.Context(), "n")
	if err != nil || state.Holder == nil || state.Holder.Token != second.Token {
		t.Fatalf("granted %d, shown %+v, %v", second.Token, state.Holder, err)
	}
	mustRelease(t, a, waiter)
	third := testbed.Receive(t, lastDone, "the last")
	if first.Token >= second.Token || second.Token >= third.Token {
		t.Fatalf("tokens %d, %d, %d", first.Token, second.Token, third.Token)
	}
	if third.Token.Counter()-second.Token.Counter() < 1000 {
		t.Fatal("the base was not raised, so this proves nothing")
	}
}

// TestBaseThatFellIsRaised: deleted, or lowered by hand.
func TestBaseThatFellIsRaised(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	d := open(t, dial(t, server.Addr()), nil)
	before := token(t, d, "n", "a")
	for _, harm := range []func(){
		func() { mustDelete(t, operator, "interlock.base") },
		func() { mustPut(t, operator, "interlock.base", "7") },
	} {
		harm()
		after := token(t, d, "n", "b")
		if after <= before {
			t.Fatalf("token %d after %d", after, before)
		}
		before = after
	}
	mustPut(t, operator, "interlock.base", "a word")
	_, err := d.Acquire(bounded(t), ask("n", "c").Request)
	if interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a base that is no number: %v", err)
	}
	mustDelete(t, operator, "interlock.base")
	if after := token(t, d, "n", "d"); after <= before {
		t.Fatalf("token %d after %d", after, before)
	}
}

// TestTokensAndRevisionsAreConverted, also after the base was raised.
func TestTokensAndRevisionsAreConverted(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d := open(t, dial(t, server.Addr()), nil)
	r := ask("n", "me")
	g := mustAcquire(t, d, r)
	at, ok := d.Contender("n", "me")
	if !ok {
		t.Fatal("it does not know its own claim")
	}
	open(t, dial(t, server.Addr()), ahead(time.Hour)) // raises the base
	if back, err := d.Token(t.Context(), at.CreateRevision); err != nil || back != g.Token {
		t.Fatalf("revision %d is token %d (%v), want %d", at.CreateRevision, back, err, g.Token)
	}
	if rev, err := d.Revision(t.Context(), g.Token); err != nil || rev != at.CreateRevision {
		t.Fatalf("token %d is revision %d (%v), want %d", g.Token, rev, err, at.CreateRevision)
	}
	client := dial(t, server.Addr())
	reply, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.CreateRevision(at.Key), "=", at.CreateRevision)).
		Then(clientv3.OpPut("data", "x", clientv3.WithLease(at.Lease))).Commit()
	if err != nil || !reply.Succeeded {
		t.Fatalf("etcd's own guard refuses the claim at %+v: %v", at, err)
	}
	if _, err := d.Revision(t.Context(), 1<<12); interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a token that was never issued: %v", err)
	}
	now := mustPut(t, client, "x", "y")
	_, err = client.Compact(t.Context(), now)
	testbed.OK(t, err)
	if _, err := d.Token(t.Context(), at.CreateRevision); interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a compacted revision: %v", err)
	}
	mustRelease(t, d, r)
	if _, ok := d.Contender("n", "me"); ok {
		t.Fatal("a released claim is still shown")
	}
}

// TestStaleBaseIsNotUsed: a session that misses a raise of the base must not grant
// tokens below those granted since.
func TestStaleBaseIsNotUsed(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	d := open(t, client, nil)
	deaf.deaf.Store(true)
	first := token(t, open(t, dial(t, server.Addr()), ahead(time.Hour)), "n", "a")
	if second := token(t, d, "n", "b"); second <= first {
		t.Fatalf("token %d after %d", second, first)
	}
}

// TestManyOpenAtOnce, each with its own client and session.
func TestManyOpenAtOnce(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	const many = 100
	clients := make([]*clientv3.Client, many)
	for i := range clients {
		clients[i] = dial(t, server.Addr())
	}
	drivertest.OpenAtOnce(t, many, func(ctx context.Context, i int) (interface{ Close(context.Context) error }, error) {
		return Open(ctx, clients[i], nil)
	})
}

// TestSeed: a wrong clock, an implausible base and its repair, and a move from another system.
func TestSeed(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	drivertest.RunSeed(t, drivertest.SeedHarness{
		Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			d, err := Open(t.Context(), operator, &Options{Seed: seed})
			if err == nil {
				testbed.CloseAfter(t, d)
			}
			return d, err
		},
		OpenAt: func(t *testing.T, now func() time.Time) error {
			_, err := Open(t.Context(), operator, &Options{Now: now})
			return err
		},
		Set: func(t *testing.T, counter int64) {
			mustPut(t, operator, "interlock.base", strconv.FormatInt(counter, 10))
		},
	})
}
