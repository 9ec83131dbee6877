package redis

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestOnce(t *testing.T) {
	t.Parallel()
	drivertest.RunOnce(t, drivertest.OnceHarness{Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Once { return NewOnce(client) })})
}

// TestOnceLayout: a message is one key, which expires.
func TestOnceLayout(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	o := NewOnce(client)
	d := driver.Delivery{Consumer: "billing", ID: "m1", Hash: make([]byte, 32), Owner: "me"}
	ttl := func() time.Duration {
		return time.Duration(number(t, client, "PTTL", onceKey(d))) * time.Millisecond
	}
	if got, err := o.Claim(t.Context(), d, time.Minute); err != nil || got != driver.ClaimedNow {
		t.Fatal(got, err)
	}
	if left := ttl(); left <= 0 || left > time.Minute {
		t.Errorf("a claim lives for %v", left)
	}
	testbed.OK(t, o.Done(t.Context(), d, driver.MaxKeep))
	if left := ttl(); left < driver.MaxKeep-time.Hour || left > driver.MaxKeep {
		t.Errorf("a record lives for %v", left)
	}
	if n, err := raw(t, client, "DBSIZE").AsInt64(); err != nil || n != 1 {
		t.Errorf("%d keys, %v", n, err)
	}
}
