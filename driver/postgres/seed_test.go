package postgres

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

// seeded opens both kinds of lock with a seed.
var seeded = map[string]func(t *testing.T, s *testbed.Server, seed driver.Seed) (breaking, error){
	"session": func(t *testing.T, s *testbed.Server, seed driver.Seed) (breaking, error) {
		d, err := Open(t.Context(), configOf(t, s.URL()), &Options{Seed: seed})
		if err != nil {
			return nil, err
		}
		closeAfter(t, d)
		return d, nil
	},
	"table": func(t *testing.T, s *testbed.Server, seed driver.Seed) (breaking, error) {
		d, err := OpenTable(t.Context(), operator(t, s.URL()), &TableOptions{Seed: seed})
		if err != nil {
			return nil, err
		}
		closeAfter(t, d)
		return d, nil
	},
}

type breaking interface {
	driver.Fenced
	driver.Breaker
}

// TestImplausibleCounter is refused when a driver opens and when it grants, until it
// is repaired on record.
func TestImplausibleCounter(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	o := operator(t, server.URL())
	for kind, open := range seeded {
		d, err := open(t, server, driver.Seed{})
		if err != nil {
			t.Fatal(err)
		}
		before := hold(t, d, "x")
		give(t, d, "x", before.owner)
		years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
		harm := fmt.Sprintf(`select setval('interlock_token', %d)`, years)
		if kind == "table" {
			harm = fmt.Sprintf(`update interlock_lease set counter = %d`, years)
		}
		if _, err := o.Exec(t.Context(), harm); err != nil {
			t.Fatal(err)
		}
		_, openErr := open(t, server, driver.Seed{})
		g := attempt(t.Context(), d, "x", driver.Request{})
		for _, err := range []error{openErr, g.err} {
			var implausible *driver.ImplausibleError
			if !errors.As(err, &implausible) || interlock.Kind(err) != interlock.Definite {
				t.Errorf("%s: an implausible counter: %v", kind, err)
			}
		}
		give(t, d, "x", g.owner)
		repaired, err := open(t, server, driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []driver.Fenced{repaired, d} {
			after := hold(t, d, "x")
			if after.grant.Token <= before.grant.Token || driver.Plausible(after.grant.Token.Counter(), time.Now()) != nil {
				t.Errorf("%s: token %d after %d", kind, after.grant.Token, before.grant.Token)
			}
			give(t, d, "x", after.owner)
			before = after
		}
		records, err := d.Breaks(context.Background(), driver.BaseName, 10)
		if err != nil || len(records) != 1 || records[0].Reason != "a wrong clock" || records[0].By != "me" {
			t.Errorf("%s: the record is %+v, %v", kind, records, err)
		}
	}
}

// TestRepairWhileTokensAreDrawn: what another session draws while the counter is repaired leaves
// no implausible reservation, and only tokens that are reserved again are granted.
func TestRepairWhileTokensAreDrawn(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	give(t, d, "x", take(t, d, "x"))
	years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
	if _, err := o.Exec(t.Context(), `select setval('interlock_token', $1)`, years); err != nil {
		t.Fatal(err)
	}
	tx, err := o.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `update interlock_reserved set counter = counter`)
	}
	if err != nil {
		t.Fatal(err)
	}
	blocked := func(n int) {
		t.Helper()
		testbed.Eventually(t, fmt.Sprintf("%d sessions wait", n), bound, func() bool {
			var waiting int
			err := o.QueryRow(t.Context(), `select count(*) from pg_stat_activity where wait_event_type = 'Lock'`).Scan(&waiting)
			return err == nil && waiting == n
		})
	}
	repaired, drawn := make(chan error, 1), make(chan grantOf, 1)
	go func() {
		other, err := Open(t.Context(), configOf(t, server.URL()), &Options{TTL: time.Minute, Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}}})
		if err == nil {
			closeAfter(t, other)
		}
		repaired <- err
	}()
	blocked(1)
	go func() { drawn <- attempt(t.Context(), d, "y", driver.Request{}) }()
	blocked(2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, repaired, "the repair"); err != nil {
		t.Fatal(err)
	}
	if g := receive(t, drawn, "what was drawn meanwhile"); g.err != nil {
		t.Errorf("drawn while the counter was repaired: %v", g.err)
	}
	g := hold(t, d, "x")
	var reserved int64
	if err := o.QueryRow(t.Context(), `select counter from interlock_reserved`).Scan(&reserved); err != nil {
		t.Fatal(err)
	}
	if driver.Plausible(reserved, time.Now()) != nil || reserved < g.grant.Token.Counter() {
		t.Errorf("%d is reserved, %d was granted", reserved, g.grant.Token.Counter())
	}
}

// TestRepairOfAReservation: if only what was reserved is implausible, tokens do not fall.
func TestRepairOfAReservation(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	o := operator(t, server.URL())
	ahead, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	if err != nil {
		t.Fatal(err)
	}
	open := func(seed driver.Seed) *Driver {
		t.Helper()
		d, err := Open(t.Context(), configOf(t, server.URL()), &Options{TTL: time.Minute, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open(driver.Seed{After: ahead})
	before := hold(t, d, "x")
	give(t, d, "x", before.owner)
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, "the session has ended", bound, func() bool {
		var sessions int
		err := o.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory'`).Scan(&sessions)
		return err == nil && sessions == 0
	})
	if _, err := o.Exec(t.Context(), `update interlock_reserved set counter = $1`, interlock.CounterAt(time.Now().Add(5*365*24*time.Hour))); err != nil {
		t.Fatal(err)
	}
	d = open(driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}})
	closeAfter(t, d)
	if after := hold(t, d, "x"); after.grant.Token <= before.grant.Token {
		t.Errorf("token %d after %d", after.grant.Token, before.grant.Token)
	}
}

// TestTokensAfterAMove are above those of the system that was left, of names that
// were there before too, and rise from there, while the server's clock is an hour
// behind them.
func TestTokensAfterAMove(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	for kind, open := range seeded {
		d, err := open(t, server, driver.Seed{})
		if err != nil {
			t.Fatal(err)
		}
		give(t, d, "old", take(t, d, "old"))
		last, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
		if err != nil {
			t.Fatal(err)
		}
		if d, err = open(t, server, driver.Seed{After: last}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"old", "new"} {
			before := last
			for range 2 {
				g := hold(t, d, name)
				if g.grant.Token <= before {
					t.Errorf("%s: token %d of %q after %d", kind, g.grant.Token, name, before)
				}
				before = g.grant.Token
				give(t, d, name, g.owner)
			}
		}
	}
}
