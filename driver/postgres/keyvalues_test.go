package postgres

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestKeyValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Postgres(t)
	drivertest.RunKeyValues(t, drivertest.KeyValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.KeyValuesBackend {
			server, namespace := serverFor(t, shared, exclusive)
			return &cabinet{paths.New[driver.KeyValues](server), server.Addr(), "public." + namespace + "_kv"}
		},
	})
}

// cabinet is a server with a path of its own for each opening of its keys.
type cabinet struct {
	*paths.Server[driver.KeyValues]
	addr  string
	table string
}

func (b *cabinet) Open(t *testing.T) (driver.KeyValues, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.KeyValues, error) {
		pool := operator(t, urlAt(path.Addr()))
		t.Cleanup(path.Close) // before the pool, which waits for what does not answer
		return NewKeyValues(pool, b.table), nil
	})
}

func (b *cabinet) Beside(t *testing.T) (driver.KeyValues, error) {
	return NewKeyValues(operator(t, urlAt(b.addr)), b.table), nil
}

func (b *cabinet) Faults() drivertest.Faults { return b.Server }
