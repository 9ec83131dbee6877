package etcd

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server := serverOr(t, exclusive)
			return cabinet{paths.New[driver.KeyValues](server), dial(t, server.Addr())}
		},
	})
}

// cabinet is a server with a path of its own for each opening of its keys.
type cabinet struct {
	*paths.Server[driver.KeyValues]
	operator *clientv3.Client // past every fault of the paths
}

func (c cabinet) Open(t *testing.T) (driver.KeyValues, error) {
	return c.Lead(t, func(path *testbed.Proxy) (driver.KeyValues, error) {
		return NewKeyValues(dial(t, path.Addr()), "suite/"), nil
	})
}

func (c cabinet) Beside(*testing.T) (driver.KeyValues, error) {
	return NewKeyValues(c.operator, "suite/"), nil
}

func (c cabinet) Faults() drivertest.Faults { return c.Server }
