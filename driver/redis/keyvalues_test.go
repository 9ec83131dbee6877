package redis

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			at := durable(t, exclusive)
			return &cabinet{led[driver.KeyValues](at), at}
		},
	})
}

// cabinet is a server with a path of its own for each opening of its keys.
type cabinet struct {
	*paths.Server[driver.KeyValues]
	at site
}

func (c *cabinet) Open(t *testing.T) (driver.KeyValues, error) {
	return c.Lead(t, func(path *testbed.Proxy) (driver.KeyValues, error) {
		return NewKeyValues(c.at.dialed(t, path), "suite/"), nil
	})
}

func (c *cabinet) Beside(t *testing.T) (driver.KeyValues, error) {
	return NewKeyValues(c.at.beside(t), "suite/"), nil
}

func (c *cabinet) Faults() drivertest.Faults { return c.Server }
