package postgres

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Postgres(t)
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.Values, error) {
				return NewValues(operator(t, urlAt(addr)), "public."+namespace+"_limits"), nil
			})
		},
	})
}

func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Postgres(t)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return paths.At(server, func(t *testing.T, addr string) (driver.KeyValues, error) {
				return NewKeyValues(operator(t, urlAt(addr)), "public."+namespace+"_kv"), nil
			})
		},
	})
}

func TestNotifierSuite(t *testing.T) {
	t.Parallel()
	shared := testbed.Postgres(t)
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.NotifierBackend {
			server, _ := serverFor(t, shared, exclusive)
			name := t.Name()
			channel := `it's a "` + name[strings.LastIndexByte(name, '/')+1:]
			return paths.At(server, func(t *testing.T, addr string) (driver.Notifier, error) {
				return NewNotifier(configOf(t, urlAt(addr)), channel, nil)
			})
		},
	})
}
