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
