package redis

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	onceSuite(t, durable)
}

func onceSuite(t *testing.T, in sites) {
	drivertest.RunOnce(t, drivertest.OnceHarness{Start: func(t *testing.T, exclusive bool) drivertest.OnceBackend {
		at := in(t, exclusive)
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
		return consumerOf{NewOnce(b.at.dialed(t, path)), b.at.prefix}, nil
	})
}

func (b *onceBackend) Beside(t *testing.T) (driver.Once, error) {
	return consumerOf{NewOnce(b.at.beside(t)), b.at.prefix}, nil
}

// consumerOf puts a prefix before the consumer, unless there is none.
type consumerOf struct {
	driver.Once
	prefix string
}

func (o consumerOf) of(d driver.Delivery) driver.Delivery {
	if d.Consumer != "" {
		d.Consumer = o.prefix + d.Consumer
	}
	return d
}

func (o consumerOf) Claim(ctx context.Context, d driver.Delivery, lease time.Duration) (driver.Claimed, error) {
	return o.Once.Claim(ctx, o.of(d), lease)
}

func (o consumerOf) Done(ctx context.Context, d driver.Delivery, keep time.Duration) error {
	return o.Once.Done(ctx, o.of(d), keep)
}

func (o consumerOf) Forget(ctx context.Context, d driver.Delivery) error {
	return o.Once.Forget(ctx, o.of(d))
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
