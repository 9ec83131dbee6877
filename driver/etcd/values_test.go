package etcd

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			var extra []string
			if !exclusive {
				extra = append(extra, "--unsafe-no-fsync")
			}
			server := testbed.Etcd(t, extra...)
			return shelf{paths.New[driver.Values](server), dial(t, server.Addr())}
		},
	})
}

// shelf is a server with a path of its own for each opening of its values.
type shelf struct {
	*paths.Server[driver.Values]
	operator *clientv3.Client // past every fault of the paths
}

func (s shelf) Open(t *testing.T) (driver.Values, error) {
	return s.Lead(t, func(path *testbed.Proxy) (driver.Values, error) {
		return NewValues(dial(t, path.Addr()), "suite/"), nil
	})
}

func (s shelf) Beside(*testing.T) (driver.Values, error) { return NewValues(s.operator, "suite/"), nil }

func (s shelf) Faults() drivertest.Faults { return s.Server }
