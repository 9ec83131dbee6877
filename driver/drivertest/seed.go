package drivertest

import (
	"context"
	"errors"
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
	// Set sets the stored counters, without a driver.
	Set func(t *testing.T, counter int64)
}

// RunSeed runs the tests of driver.Seed on one backend, in this order: the repair lowers tokens
// that are ahead of the clock.
func RunSeed(t *testing.T, h SeedHarness) {
	t.Run("ImplausibleCounter", h.testImplausible)
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
}

// testImplausible checks that a driver with an implausible counter neither opens nor grants
// until the counter is repaired, which is recorded.
func (h SeedHarness) testImplausible(t *testing.T) {
	d := h.mustOpen(t, driver.Seed{})
	before := tokenOf(t, d, "x")
	h.Set(t, interlock.CounterAt(time.Now().Add(5*365*24*time.Hour)))
	_, openErr := h.Open(t, driver.Seed{})
	r := driver.Request{Name: "x", Owner: "refused"}
	_, acquireErr := d.Acquire(t.Context(), r)
	for _, err := range []error{openErr, acquireErr} {
		var implausible *driver.ImplausibleError
		if !errors.As(err, &implausible) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("an implausible counter: %v", err)
		}
	}
	if err := d.Release(t.Context(), r.Name, r.Owner); err != nil {
		t.Error(err)
	}
	repair := driver.Repair{Reason: "a wrong clock", By: "me"}
	for _, d := range []driver.Fenced{h.mustOpen(t, driver.Seed{Repair: &repair}), d} {
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
