package drivertest

import (
	"context"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// RunAdvisory runs the tests that apply to a driver without tokens and without an
// inspectable queue. Backend.Open wraps each driver with [Advisory].
func RunAdvisory(t *testing.T, h Harness) {
	h.Without |= Tokens | Inspection
	RunFenced(t, h)
}

// Advisory adapts an advisory driver to a [Backend]. Its grants have no token.
func Advisory(d driver.Advisory) driver.Fenced { return advisory{d} }

type advisory struct{ d driver.Advisory }

func (a advisory) Guarantees() interlock.Guarantees { return a.d.Guarantees() }

func (a advisory) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lease, err := a.d.Acquire(ctx, r)
	return driver.Grant{Lease: lease}, err
}

func (a advisory) Release(ctx context.Context, name, owner string) error {
	return a.d.Release(ctx, name, owner)
}

func (a advisory) Close(ctx context.Context) error { return a.d.Close(ctx) }

// Unwrap returns the driver that [Advisory] wrapped, or nil.
func Unwrap(d driver.Fenced) driver.Advisory {
	if a, ok := d.(advisory); ok {
		return a.d
	}
	return nil
}
