package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestLattices(t *testing.T) {
	t.Parallel()
	drivertest.RunLattices(t, drivertest.LatticesHarness{Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Lattices { return NewLattices(client, prefix) })})
}

// Every call is one request, with a guard too; foreign keys do not count as states.
func TestLatticesCost(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client, operator := dial(t, server.Addr()), dial(t, server.Addr())
	s := NewLattices(client, "")
	delta := driver.Lattice{Max: map[string]string{"f": "1"}}
	guard := &driver.Raise{Resource: "r", Token: interlock.Token(1 << 12)}
	merge := func() {
		t.Helper()
		for _, g := range []*driver.Raise{nil, guard} {
			testbed.OK(t, s.Merge(t.Context(), "x", delta, g))
		}
	}
	merge() // from here on the server knows the scripts
	before := calls(t, operator)
	merge()
	if _, err := s.Load(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if spent := since(t, operator, before); spent["evalsha"] != 2 || spent["eval"] != 0 || spent["hgetall"] != 1 {
		t.Errorf("three calls cost %v", spent)
	}
	for key, fields := range map[string][]string{"kind": {"x", "1"}, "number": {"a1eu", "1"}, "digits": {"a000000000000000000xeu", "1"},
		"range": {"seu", "1"}, "order": {"seu", "1-2 2-3"}, "unseen": {"a0000000000000000001eu", "1"}} {
		mustDo(t, operator, append([]string{"HSET", s.key(key)}, fields...)...)
		if _, err := s.Load(t.Context(), key); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// On a cluster a guard needs the state's slot.
func latticesOnCluster(t *testing.T, client rueidis.Client) {
	s, delta := NewLattices(client, ""), driver.Lattice{Max: map[string]string{"f": "1"}}
	for _, c := range []struct{ name, resource string }{{"a", ""}, {"b", ""}, {"c", ""}, {"stock/{x}", "stock/{x}/eu"}} {
		var guard *driver.Raise
		if c.resource != "" {
			guard = &driver.Raise{Resource: c.resource, Token: tokenOf(t, 5, 0)}
		}
		if err := s.Merge(t.Context(), c.name, delta, guard); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if l, err := s.Load(t.Context(), c.name); err != nil || l.Max["f"] != "1" {
			t.Errorf("%s is %v, %v", c.name, l, err)
		}
	}
	guard := &driver.Raise{Resource: "r{x}", Token: tokenOf(t, 5, 0)}
	if err := s.Merge(t.Context(), "{y}", delta, guard); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Errorf("a guard in another slot: %v", err)
	}
}
