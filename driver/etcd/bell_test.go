package etcd

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestBell(t *testing.T) {
	t.Parallel()
	drivertest.RunBell(t, drivertest.BellHarness{
		Start: func(t *testing.T, _ bool) drivertest.BellBackend {
			server := serverFor(t)
			return bellBackend{paths.New[driver.Bell](server), dial(t, server.Addr())}
		},
	})
}

// bellBackend is a server by which processes ring for each other.
type bellBackend struct {
	*paths.Server[driver.Bell]
	operator *clientv3.Client
}

func (b bellBackend) Open(t *testing.T) (driver.Bell, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Bell, error) {
		return bellOf(t, dial(t, path.Addr())), nil
	})
}

func (b bellBackend) Beside(t *testing.T) (driver.Bell, error) { return bellOf(t, b.operator), nil }

func (b bellBackend) Faults() drivertest.Faults { return b.Server }

func bellOf(t *testing.T, client *clientv3.Client) *Bell {
	b := NewBell(client, "suite/")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}
