package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestSeed(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	for name, kind := range map[string]struct {
		set  string
		open func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error)
	}{
		"session": {`select setval('interlock_token', $1)`, func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			return Open(t.Context(), configOf(t, server.URL()), &Options{Seed: seed})
		}},
		"table": {`update interlock_lease set counter = $1`, func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			return OpenTable(t.Context(), operator(t, server.URL()), &TableOptions{Seed: seed})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			drivertest.RunSeed(t, drivertest.SeedHarness{
				Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
					d, err := kind.open(t, seed)
					if err == nil {
						testbed.CloseAfter(t, d)
					}
					return d, err
				},
				Set: func(t *testing.T, counter int64) {
					exec(t, o, kind.set, counter)
				},
			})
		})
	}
}

// TestRepairWhileTokensAreDrawn: what another session draws while the counter is repaired leaves
// no implausible reservation, and only tokens that are reserved again are granted.
func TestRepairWhileTokensAreDrawn(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	give(t, d, "x", take(t, d, "x"))
	years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
	exec(t, o, `select setval('interlock_token', $1)`, years)
	exec(t, o, `update interlock_reserved set counter = $1`, years)
	blocked := func(n int) {
		t.Helper()
		testbed.Eventually(t, fmt.Sprintf("%d sessions wait", n), bound, func() bool {
			return value[int](t, o, `select count(*) from pg_stat_activity where wait_event_type = 'Lock'`) == n
		})
	}
	// What waits for the lock of the schema keeps the repair, which shares it at its end, from its
	// commit.
	between, commit := context.WithCancel(t.Context())
	defer commit()
	repaired, drawn, gone := make(chan error, 1), make(chan grantOf, 1), make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = o.Exec(between, `select pg_advisory_lock($1, hashtext('public'))`, schemaClass(DefaultNamespace))
	}()
	blocked(1)
	go func() {
		other, err := Open(t.Context(), configOf(t, server.URL()), &Options{TTL: time.Minute, Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}}})
		if err == nil {
			testbed.CloseAfter(t, other)
		}
		repaired <- err
	}()
	blocked(2)
	go func() { drawn <- attempt(t.Context(), d, "y", driver.Request{}) }()
	blocked(3)
	commit()
	testbed.Receive(t, gone, "the end of what waited for the schema")
	testbed.OK(t, testbed.Receive(t, repaired, "the repair"))
	if g := testbed.Receive(t, drawn, "what was drawn meanwhile"); g.err != nil {
		t.Errorf("drawn while the counter was repaired: %v", g.err)
	}
	g := hold(t, d, "x")
	reserved := value[int64](t, o, `select counter from interlock_reserved`)
	if driver.Plausible(reserved, time.Now()) != nil || reserved < g.grant.Token.Counter() {
		t.Errorf("%d is reserved, %d was granted", reserved, g.grant.Token.Counter())
	}
}

// TestCountersBelowAReservation, as after a repair, are not taken for reserved.
func TestCountersBelowAReservation(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	var token int64
	for _, ahead := range []time.Duration{time.Hour, time.Minute} {
		for _, query := range []string{`delete from interlock_reserved where counter <> $1`, `select setval('interlock_token', $1)`} {
			exec(t, o, query, interlock.CounterAt(time.Now().Add(ahead)))
		}
		g := hold(t, d, "x")
		token = g.grant.Token.Counter()
		give(t, d, "x", g.owner)
	}
	if reserved := value[int64](t, o, `select counter from interlock_reserved`); reserved < token {
		t.Errorf("%d is reserved, %d was granted", reserved, token)
	}
}

// TestRepairOfAReservation: if only what was reserved is implausible, tokens do not fall.
func TestRepairOfAReservation(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	ahead, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	testbed.OK(t, err)
	open := func(seed driver.Seed) *Driver {
		t.Helper()
		d, err := Open(t.Context(), configOf(t, server.URL()), &Options{TTL: time.Minute, Seed: seed})
		testbed.OK(t, err)
		return d
	}
	d := open(driver.Seed{After: ahead})
	before := hold(t, d, "x")
	give(t, d, "x", before.owner)
	testbed.OK(t, d.Close(t.Context()))
	testbed.Eventually(t, "the session has ended", bound, func() bool {
		return value[int](t, o, `select count(*) from pg_locks where locktype = 'advisory'`) == 0
	})
	exec(t, o, `update interlock_reserved set counter = $1`, interlock.CounterAt(time.Now().Add(5*365*24*time.Hour)))
	d = open(driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}})
	testbed.CloseAfter(t, d)
	if after := hold(t, d, "x"); after.grant.Token <= before.grant.Token {
		t.Errorf("token %d after %d", after.grant.Token, before.grant.Token)
	}
}
