package etcd

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			return paths.At(serverOr(t, exclusive), func(t *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(dial(t, addr), "suite/"), nil
			})
		},
	})
}
