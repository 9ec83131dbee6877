package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.KeyValues { return NewKeyValues(client, "suite/") }),
	})
}
