package etcd

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestNotifier(t *testing.T) {
	t.Parallel()
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, _ bool) drivertest.NotifierBackend {
			return paths.At(serverFor(t), func(t *testing.T, addr string) (driver.Notifier, error) {
				return NewNotifier(dial(t, addr), "suite/"), nil
			})
		},
	})
}
