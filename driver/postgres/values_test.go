package postgres

import (
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
			return &valuesBackend{paths.New[driver.Values](server), server.Addr(), "public." + namespace + "_limits"}
		},
	})
}

type valuesBackend struct {
	*paths.Server[driver.Values]
	addr  string
	table string
}

func (b *valuesBackend) Open(t *testing.T) (driver.Values, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Values, error) {
		pool := operator(t, urlAt(path.Addr()))
		t.Cleanup(path.Close) // before the pool, which waits for what does not answer
		return NewValues(pool, b.table), nil
	})
}

func (b *valuesBackend) Beside(t *testing.T) (driver.Values, error) {
	return NewValues(operator(t, urlAt(b.addr)), b.table), nil
}

func (b *valuesBackend) Faults() drivertest.Faults { return b.Server }
