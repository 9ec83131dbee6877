package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
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

// TestIdempotencyCost: one script for each step.
func TestIdempotencyCost(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	records := NewIdempotency(client, "")
	id := driver.IdempotencyID{Operation: "op", Key: "k"}
	steps := func(owner string) {
		t.Helper()
		if _, err := records.Claim(t.Context(), driver.IdempotencyClaim{ID: id, Fingerprint: "f", Owner: owner, Lease: 1e9}); err != nil {
			t.Fatal(err)
		}
		testbed.OK(t, records.Update(t.Context(), driver.IdempotencyUpdate{ID: id, Owner: owner, Forget: true}))
	}
	steps("a") // the server loads the scripts
	before := calls(t, client)["evalsha"]
	steps("b")
	if n := calls(t, client)["evalsha"] - before; n != 2 {
		t.Errorf("%d requests for a claim and its end", n)
	}
}
