package etcd

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			return openingsOn(t, exclusive, func(_ *testing.T, client *clientv3.Client) driver.KeyValues { return NewKeyValues(client, "suite/") })
		},
	})
}
