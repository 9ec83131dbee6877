package etcd

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
)

func TestNotifier(t *testing.T) {
	t.Parallel()
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, _ bool) drivertest.NotifierBackend {
			return openingsOn(t, false, func(t *testing.T, client *clientv3.Client) driver.Notifier {
				b := NewNotifier(client, "suite/")
				t.Cleanup(func() {
					if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				})
				return b
			})
		},
	})
}
