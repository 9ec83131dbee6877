package postgres

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestBellSuite(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	drivertest.RunBell(t, drivertest.BellHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.BellBackend {
			at := server
			if exclusive {
				at = testbed.Postgres(t)
			}
			name := t.Name()
			return &bellBackend{paths.New[driver.Bell](at), at.URL(), at.Addr(), name[strings.LastIndexByte(name, '/')+1:]}
		},
	})
}

// bellBackend is a server by which processes ring for each other.
type bellBackend struct {
	*paths.Server[driver.Bell]
	url, addr, channel string
}

func (b *bellBackend) Open(t *testing.T) (driver.Bell, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Bell, error) {
		return NewBell(configOf(t, strings.Replace(b.url, b.addr, path.Addr(), 1)), b.channel, nil)
	})
}

func (b *bellBackend) Beside(t *testing.T) (driver.Bell, error) {
	return openBell(t, b.url, b.channel, nil), nil
}

func (b *bellBackend) Faults() drivertest.Faults { return b.Server }
