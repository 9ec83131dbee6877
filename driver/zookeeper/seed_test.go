package zookeeper

import (
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSeed: a wrong clock, an implausible base and its repair, and a move from another system.
func TestSeed(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	drivertest.RunSeed(t, drivertest.SeedHarness{
		Open: func(t *testing.T, seed driver.Seed) (drivertest.Seeded, error) {
			d, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}, Seed: seed})
			if err == nil {
				testbed.CloseAfter(t, d)
			}
			return d, err
		},
		OpenAt: func(t *testing.T, now func() time.Time) error {
			_, err := Open(t.Context(), &Options{Servers: []string{server.Addr()}, Now: now})
			return err
		},
		Set: func(t *testing.T, counter int64) {
			_, stat, err := operator.Get("/interlock/interlock.base")
			testbed.OK(t, err)
			_, err = operator.Set("/interlock/interlock.base", fmt.Appendf(nil, `{"base":%d,"anchor":%d}`, counter, stat.Mzxid), -1)
			testbed.OK(t, err)
		},
	})
}
