package redis

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	drivertest.RunOnce(t, drivertest.OnceHarness{Start: func(t *testing.T, exclusive bool) drivertest.OnceBackend {
		at := durable(t, exclusive)
		return &onceBackend{led[driver.Once](at), at}
	}})
}

// onceBackend is a server with a path of its own for each consumer.
type onceBackend struct {
	*paths.Server[driver.Once]
	at site
}

func (b *onceBackend) Open(t *testing.T) (driver.Once, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Once, error) {
		return NewOnce(b.at.dialed(t, path)), nil
	})
}

func (b *onceBackend) Beside(t *testing.T) (driver.Once, error) {
	return NewOnce(b.at.beside(t)), nil
}

func (b *onceBackend) Faults() drivertest.Faults { return b.Server }

// TestOnceLayout: a message is one key, which expires by itself.
func TestOnceLayout(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	o := NewOnce(client)
	d := driver.Delivery{Consumer: "billing", ID: "m1", Hash: make([]byte, 32), Owner: "me"}
	ttl := func() time.Duration {
		ms, err := raw(t, client, "PTTL", onceKey(d)).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	if got, err := o.Claim(t.Context(), d, time.Minute); err != nil || got != driver.ClaimedNow {
		t.Fatal(got, err)
	}
	if left := ttl(); left <= 0 || left > time.Minute {
		t.Errorf("a claim lives for %v", left)
	}
	if err := o.Done(t.Context(), d, driver.MaxKeep); err != nil {
		t.Fatal(err)
	}
	if left := ttl(); left < driver.MaxKeep-time.Hour || left > driver.MaxKeep {
		t.Errorf("a record lives for %v", left)
	}
	if n, err := raw(t, client, "DBSIZE").AsInt64(); err != nil || n != 1 {
		t.Errorf("%d keys, %v", n, err)
	}
}
