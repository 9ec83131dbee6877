package redis

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	drivertest.RunVersions(t, drivertest.VersionsHarness{
		Start: suiteBackends(sharing(testbed.Redis(t)), func(client rueidis.Client, prefix string) driver.Versions { return NewVersions(client, prefix) }),
	})
}

// Every call is one request. A key that is no state is neither read as one nor
// overwritten.
func TestVersionsCostOneRequest(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client, operator := dial(t, server.Addr()), dial(t, server.Addr())
	s := NewVersions(client, "")
	v := func(n int64) driver.Versioned { return driver.Versioned{Stamp: driver.Stamp{Version: n}} }
	apply := func(n int64) {
		t.Helper()
		if _, _, err := s.Apply(t.Context(), "x", v(n)); err != nil {
			t.Fatal(err)
		}
	}
	apply(1) // from here on the server knows the script
	before := calls(t, operator)
	for _, n := range []int64{2, 1, 2, 3} {
		apply(n)
	}
	if _, _, err := s.Replace(t.Context(), "x", v(3).Stamp, v(4)); err != nil {
		t.Fatal(err)
	}
	spent := since(t, operator, before)
	if spent["evalsha"] != 5 || spent["eval"] != 0 || spent["hgetall"] != 0 {
		t.Errorf("five calls cost %v", spent)
	}

	for key, command := range map[string][]string{
		"a text":    {"SET", s.key("a text"), "x"},
		"no number": {"HSET", s.key("no number"), "version", "zzzzzzzzzzzzzzzzzzzz", "data", "x"},
		"by hand":   {"HSET", s.key("by hand"), "version", "5", "data", "x"}, // which sorts above every 19 digits
	} {
		mustDo(t, operator, command...)
		if _, _, err := s.Apply(t.Context(), key, v(1)); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("apply to %s: %v", key, err)
		}
		if _, err := s.Get(t.Context(), key); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("get of %s: %v", key, err)
		}
	}
}
