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

func TestNotifier(t *testing.T) {
	t.Parallel()
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, _ bool) drivertest.NotifierBackend {
			server := serverFor(t)
			return notifierBackend{paths.New[driver.Notifier](server), dial(t, server.Addr())}
		},
	})
}

// notifierBackend is a server by which processes notify each other.
type notifierBackend struct {
	*paths.Server[driver.Notifier]
	operator *clientv3.Client
}

func (b notifierBackend) Open(t *testing.T) (driver.Notifier, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Notifier, error) {
		return notifierOf(t, dial(t, path.Addr())), nil
	})
}

func (b notifierBackend) Beside(t *testing.T) (driver.Notifier, error) {
	return notifierOf(t, b.operator), nil
}

func (b notifierBackend) Faults() drivertest.Faults { return b.Server }

func notifierOf(t *testing.T, client *clientv3.Client) *Notifier {
	b := NewNotifier(client, "suite/")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}
