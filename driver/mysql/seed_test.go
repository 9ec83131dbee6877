package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var rowsOf = map[string]string{"session": "interlock_holder", "table": "interlock_lease"}

// TestImplausibleCounter is refused when a driver opens and when it grants, until it
// is repaired on record.
func TestImplausibleCounter(t *testing.T) {
	server := testbed.MariaDB(t)
	admin := open(t, server.URL())
	for _, m := range modes {
		d := m.mustOpen(t, server.URL(), nil)
		r := request("x")
		before := acquire(t, d, r).Token
		release(t, d, r)
		years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
		if _, err := admin.Exec(fmt.Sprintf(`update %s set counter = %d`, rowsOf[m.name], years)); err != nil {
			t.Fatal(err)
		}
		r = request("x")
		_, openErr := m.open(t.Context(), t, server.URL(), nil)
		_, acquireErr := d.Acquire(t.Context(), r)
		for _, err := range []error{openErr, acquireErr} {
			var implausible *driver.ImplausibleError
			if !errors.As(err, &implausible) || interlock.Kind(err) != interlock.Definite {
				t.Errorf("%s: an implausible counter: %v", m.name, err)
			}
		}
		release(t, d, r)
		repair := &mysql.Options{Seed: driver.Seed{Repair: &driver.Repair{Reason: "a wrong clock", By: "me"}}}
		for _, d := range []driver.Fenced{m.mustOpen(t, server.URL(), repair), d} {
			r := request("x")
			after := acquire(t, d, r).Token
			if after <= before || driver.Plausible(after.Counter(), time.Now()) != nil {
				t.Errorf("%s: token %d after %d", m.name, after, before)
			}
			release(t, d, r)
			before = after
		}
		records, err := d.(driver.Breaker).Breaks(context.Background(), driver.BaseName, 10)
		if err != nil || len(records) != 1 || records[0].Reason != "a wrong clock" || records[0].By != "me" {
			t.Errorf("%s: the record is %+v, %v", m.name, records, err)
		}
	}
}

// TestTokensAfterAMove are above those of the system that was left, of names that
// were there before too, and rise from there, while the server's clock is an hour
// behind them.
func TestTokensAfterAMove(t *testing.T) {
	server := testbed.MariaDB(t)
	for _, m := range modes {
		d := m.mustOpen(t, server.URL(), nil)
		r := request("old")
		acquire(t, d, r)
		release(t, d, r)
		last, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
		if err != nil {
			t.Fatal(err)
		}
		d = m.mustOpen(t, server.URL(), &mysql.Options{Seed: driver.Seed{After: last}})
		for _, name := range []string{"old", "new"} {
			before := last
			for range 2 {
				r := request(name)
				g := acquire(t, d, r)
				if g.Token <= before {
					t.Errorf("%s: token %d of %q after %d", m.name, g.Token, name, before)
				}
				before = g.Token
				release(t, d, r)
			}
		}
	}
}
