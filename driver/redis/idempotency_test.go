package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
)

func TestIdempotency(t *testing.T) {
	t.Parallel()
	drivertest.RunIdempotency(t, drivertest.IdempotencyHarness{
		Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Idempotency { return NewIdempotency(client, "shop") }),
	})
}

func TestMembersAreInjective(t *testing.T) {
	t.Parallel()
	for _, id := range []driver.IdempotencyID{{Scope: "", Operation: "a", Key: "1:b/"}, {Scope: "2:", Operation: "/", Key: ":"}} {
		if got, err := parseMember(member(id)); err != nil || got != id {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for _, damaged := range []string{"", "1", "x:a/", "-1:a/", "9:a/", "1:a/1:b/", "1:a/1:b/1:"} {
		if id, err := parseMember(damaged); err == nil {
			t.Errorf("%q is %+v", damaged, id)
		}
	}
}
