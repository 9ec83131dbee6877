package consul

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	t.Parallel()
	shared := testbed.Shared(t, testbed.Consul)
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			b := &valuesBackend{server: shared, prefix: fmt.Sprintf("suite/%d/", namespaces.Add(1))}
			if exclusive {
				b.server = borrow(t)
			}
			b.Server = paths.New[*Values](b.server)
			return b
		},
	})
}

type valuesBackend struct {
	*paths.Server[*Values]
	server *testbed.Server
	prefix string
	armed  atomic.Bool // the next write loses its answer
}

// DropReplies waits for a write: before it is a read, whose loss would show.
func (b *valuesBackend) DropReplies() { b.armed.Store(true) }

func (b *valuesBackend) Open(t *testing.T) (driver.Values, error) {
	return b.Lead(t, func(path *testbed.Proxy) (*Values, error) {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		return NewValues(&Options{Address: path.Addr(), Prefix: b.prefix, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && b.armed.CompareAndSwap(true, false) {
				path.DropReplies()
			}
			return transport.RoundTrip(r)
		})})
	})
}

func (b *valuesBackend) Beside(t *testing.T) (driver.Values, error) {
	v, err := NewValues(&Options{Address: b.server.Addr(), Prefix: b.prefix})
	if err == nil {
		t.Cleanup(v.client.idle)
	}
	return v, err
}

func (b *valuesBackend) Faults() drivertest.Faults { return b }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
