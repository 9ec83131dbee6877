package postgres

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestNotifierSuite(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	drivertest.RunNotifier(t, drivertest.NotifierHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.NotifierBackend {
			at := server
			if exclusive {
				at = testbed.Postgres(t)
			}
			name := t.Name()
			return &notifierBackend{paths.New[driver.Notifier](at), at.URL(), at.Addr(), name[strings.LastIndexByte(name, '/')+1:]}
		},
	})
}

// notifierBackend is a server by which processes notify each other.
type notifierBackend struct {
	*paths.Server[driver.Notifier]
	url, addr, channel string
}

func (b *notifierBackend) Open(t *testing.T) (driver.Notifier, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Notifier, error) {
		return NewNotifier(configOf(t, strings.Replace(b.url, b.addr, path.Addr(), 1)), b.channel, nil)
	})
}

func (b *notifierBackend) Beside(t *testing.T) (driver.Notifier, error) {
	return openNotifier(t, b.url, b.channel, nil), nil
}

func (b *notifierBackend) Faults() drivertest.Faults { return b.Server }
