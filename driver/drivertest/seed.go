package drivertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Seeded is a driver that opens with a driver.Seed.
type Seeded interface {
	driver.Fenced
	driver.Breaker
}

// SeedHarness gives [RunSeed] access to a backend.
type SeedHarness struct {
	// Open opens a driver, which t.Cleanup closes.
	Open func(t *testing.T, seed driver.Seed) (Seeded, error)
	// OpenAt opens a driver whose clock is now; nil if tokens depend on no clock of a process.
	OpenAt func(t *testing.T, now func() time.Time) error
	// Set sets the stored counters, without a driver.
	Set func(t *testing.T, counter int64)
}

// RunSeed runs the tests of driver.Seed on one backend, in this order: the repair lowers tokens
// that are ahead of the clock.
func RunSeed(t *testing.T, h SeedHarness) {
	t.Run("ImplausibleCounter", h.testImplausible)
	if h.OpenAt != nil {
		t.Run("ClockOfOneClient", h.testClock)
	}
	t.Run("TokensAfterAMove", h.testMove)
}

func (h SeedHarness) mustOpen(t *testing.T, seed driver.Seed) Seeded {
	t.Helper()
	d, err := h.Open(t, seed)
	testbed.OK(t, err)
	return d
}

// tokenOf returns the token of a grant, and releases it.
func tokenOf(t *testing.T, d driver.Fenced, name string) interlock.Token {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	g, err := d.Acquire(ctx, driver.Request{Name: name, Owner: t.Name()})
	if err == nil {
		err = d.Release(ctx, name, t.Name())
	}
	testbed.OK(t, err)
	return g.Token
}

// testMove checks that tokens rise from above those of the former system, also for known names.
// The server's clock is an hour behind them.
func (h SeedHarness) testMove(t *testing.T) {
	tokenOf(t, h.mustOpen(t, driver.Seed{}), "old")
	last, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(time.Hour)), 7)
	testbed.OK(t, err)
	d := h.mustOpen(t, driver.Seed{After: last})
	for _, name := range []string{"old", "new"} {
		before := last
		for range 2 {
			token := tokenOf(t, d, name)
			if token <= before {
				t.Errorf("token %d of %q after %d", token, name, before)
			}
			before = token
		}
	}
	if token := tokenOf(t, h.mustOpen(t, driver.Seed{}), "later"); token <= last {
		t.Errorf("token %d of a later process after %d", token, last)
	}
}

const years = 5 * 365 * 24 * time.Hour

// testClock checks that a process whose clock is years ahead does not open, and raises nothing.
func (h SeedHarness) testClock(t *testing.T) {
	err := h.OpenAt(t, func() time.Time { return time.Now().Add(years) })
	if _, found := errors.AsType[*driver.ClockError](err); !found || interlock.Kind(err) != interlock.Definite {
		t.Errorf("opened years ahead: %v", err)
	}
	if token := tokenOf(t, h.mustOpen(t, driver.Seed{}), "x"); driver.Plausible(token.Counter(), time.Now()) != nil {
		t.Errorf("token of %d", token.Counter())
	}
}

// testImplausible checks that a driver with an implausible counter neither opens nor grants
// until the counter is repaired, which is recorded.
func (h SeedHarness) testImplausible(t *testing.T) {
	d := h.mustOpen(t, driver.Seed{})
	before := tokenOf(t, d, "x")
	h.Set(t, interlock.CounterAt(time.Now().Add(years)))
	_, openErr := h.Open(t, driver.Seed{})
	r := driver.Request{Name: "x", Owner: "refused"}
	_, acquireErr := d.Acquire(t.Context(), r)
	for _, err := range []error{openErr, acquireErr} {
		if _, found := errors.AsType[*driver.ImplausibleError](err); !found || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "interlock tokens repair") {
			t.Errorf("an implausible counter: %v", err)
		}
	}
	if err := d.Release(t.Context(), r.Name, r.Owner); err != nil {
		t.Error(err)
	}
	var high, low int64
	repair := driver.Repair{Reason: "a wrong clock", By: "me", Lowered: func(b, a int64) { high, low = b, a }}
	repaired := h.mustOpen(t, driver.Seed{Repair: &repair})
	if high < interlock.CounterAt(time.Now().Add(years/2)) || low > interlock.CounterAt(time.Now().Add(time.Minute)) {
		t.Errorf("lowered from %d to %d", high, low)
	}
	for _, d := range []driver.Fenced{repaired, d, h.mustOpen(t, driver.Seed{})} {
		after := tokenOf(t, d, "x")
		if after <= before || driver.Plausible(after.Counter(), time.Now()) != nil {
			t.Errorf("token %d after %d", after, before)
		}
		before = after
	}
	records, err := d.Breaks(t.Context(), driver.BaseName, 10)
	if err != nil || len(records) != 1 || records[0].Reason != repair.Reason || records[0].By != repair.By {
		t.Errorf("the record is %+v, %v", records, err)
	}
}
