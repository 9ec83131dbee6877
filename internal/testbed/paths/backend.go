package paths

import (
	"testing"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Backend is the backend of a suite that opens a D at an address. It implements
// drivertest.StoreBackend and, for locks, half of drivertest.Backend.
type Backend[D comparable] struct {
	*Server[D]
	at func(t *testing.T, addr string) (D, error)
}

// At returns a Backend. open releases with t.Cleanup what its D does not close.
func At[D comparable](server *testbed.Server, open func(t *testing.T, addr string) (D, error)) Backend[D] {
	return Backend[D]{New[D](server), open}
}

// Open opens a D over its own path, which Faults can break.
func (b Backend[D]) Open(t *testing.T) (D, error) {
	return b.Lead(t, func(path *testbed.Proxy) (D, error) {
		d, err := b.open(t, path.Addr())
		t.Cleanup(path.Close) // runs before the clean-up of open: a client may wait for an answer
		return d, err
	})
}

// Beside opens a D over a path without faults. It is closed as by Lead.
func (b Backend[D]) Beside(t *testing.T) (D, error) {
	d, err := b.open(t, b.server.Addr())
	if err == nil {
		closeAfter(t, d)
	}
	return d, err
}

func (b Backend[D]) open(t *testing.T, addr string) (d D, err error) {
	if d, err = b.at(t, addr); err != nil {
		return *new(D), err // not a typed nil
	}
	return d, nil
}

// Faults returns the faults of the server and the paths.
func (b Backend[D]) Faults() drivertest.Faults { return b.Server }
