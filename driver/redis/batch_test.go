package redis

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func askFor(names ...string) (all []driver.Request) {
	for _, name := range names {
		all = append(all, driver.Request{Name: name, Owner: newOwner()})
	}
	return all
}

func releaseAll(t testing.TB, d *Driver, requests []driver.Request) {
	t.Helper()
	for _, r := range requests {
		release(t, d, r.Name, r.Owner)
	}
}

// One request acquires several names; a release and a refusal cost one each.
func TestSeveralNamesCostOneRequest(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	const rounds = 25
	before := calls(t, operator)
	for range rounds {
		all := askFor("a", "b", "c")
		if _, err := d.AcquireAll(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		releaseAll(t, d, all)
	}
	spent := since(t, operator, before)
	if got := spent["evalsha"] + spent["eval"]; got != 4*rounds {
		t.Errorf("%d requests for %d times three names: %v", got, rounds, spent)
	}
	take(t, d, "c")
	before = calls(t, operator)
	if _, err := d.AcquireAll(t.Context(), askFor("a", "b", "c")); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	if got := since(t, operator, before)["evalsha"]; got != 1 {
		t.Errorf("%d requests for a refusal", got)
	}
}

// A lock that an operator deleted is granted to its waiter. A refusal reads before
// it takes: it draws no counter and publishes nothing.
func TestSeveralNamesDoNotBarge(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "b")
	waiting := await(t, openOn(t, server.Addr(), nil), "b")
	mustDo(t, operator, "DEL", "b")
	before := calls(t, operator)
	if _, err := d.AcquireAll(t.Context(), askFor("a", "b", "c")); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	mustHaveNoKeys(t, d, "a", "c")
	if drawn := since(t, operator, before)["getset"]; drawn > 1 { // one for the waiter
		t.Errorf("a refusal drew %d counters", drawn-1)
	}
	receive(t, waiting, bound)
	release(t, d, "b", owner)
}

// Damaged keys: nothing is acquired, and what was acquired before the server
// noticed is released.
func TestSeveralNamesOfWhichOneIsBad(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	names := []string{"a", "b", "c"}
	for _, bad := range names {
		for _, command := range [][]string{
			{"HSET", bad, "field", "value"}, {"SET", keysOf(bad).queue, "x"},
		} {
			mustDo(t, operator, command...)
			var failed *interlock.Error
			_, err := d.AcquireAll(t.Context(), askFor(names...))
			if !errors.As(err, &failed) || failed.Name != bad || failed.Kind != interlock.Definite {
				t.Errorf("%q: %v", command, err)
			}
			mustDo(t, operator, "DEL", command[1])
			mustHaveNoKeys(t, d, names...)
		}
	}
	all := askFor(names...)
	if _, err := d.AcquireAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	waiting := await(t, openOn(t, server.Addr(), nil), "a")
	// the next step fails after it has confirmed what a holds: b has no counter, and cannot be listed
	mustDo(t, operator, "SET", "b", all[1].Owner)
	mustDo(t, operator, "SET", keysOf("b").names, "a string")
	if _, err := d.AcquireAll(t.Context(), all); err == nil || errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	receive(t, waiting, bound) // it gets what was released
	mustHaveNoKeys(t, d, "c")
}

func mustHaveNoKeys(t *testing.T, d *Driver, names ...string) {
	t.Helper()
	for _, name := range names {
		state, err := d.Lock(t.Context(), name)
		if err != nil || state.Holder != nil || len(state.Waiters) > 0 {
			t.Errorf("%q: %+v, %v", name, state, err)
		}
	}
}

// A release does not overtake an abandoned request for several names: the order
// covers all their owners.
func TestSeveralNamesGivenUp(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	d := openOn(t, path.Addr(), nil)
	all := askFor("a", "b")
	path.DropReplies()
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	go func() { _, err := d.AcquireAll(ctx, all); told <- err }()
	testbed.Eventually(t, "both owners' requests are under way", bound, func() bool {
		d.conn.mu.Lock()
		defer d.conn.mu.Unlock()
		return len(d.conn.last) == 2
	})
	cancel()
	if err := <-told; interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("%v (%v)", err, interlock.Kind(err))
	}
	path.Heal()
	releases := func() bool {
		for _, r := range all {
			if d.Release(t.Context(), r.Name, r.Owner) != nil {
				return false
			}
		}
		return true
	}
	testbed.Eventually(t, "both are released", bound, releases)
	mustHaveNoKeys(t, openOn(t, server.Addr(), nil), "a", "b")
}

// Refused names are no longer renewed.
func TestRefusedNamesAreNotKept(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	all := askFor("a", "b")
	if _, err := d.AcquireAll(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	mustDo(t, operator, "SET", "b", "foreigner")
	if _, err := d.AcquireAll(t.Context(), all); !errors.Is(err, interlock.ErrHeld) {
		t.Fatal(err)
	}
	if n := d.held.Len(); n != 0 {
		t.Errorf("%d leases are kept", n)
	}
}
