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

// A key that is no state is neither read as one nor overwritten.
func TestDamagedVersions(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s, v := NewVersions(client, ""), driver.Versioned{Stamp: driver.Stamp{Version: 1}}
	for key, command := range map[string][]string{
		"a text":    {"SET", s.key("a text"), "x"},
		"no number": {"HSET", s.key("no number"), "version", "zzzzzzzzzzzzzzzzzzzz", "data", "x"},
		"by hand":   {"HSET", s.key("by hand"), "version", "5", "data", "x"}, // which sorts above every 19 digits
	} {
		mustDo(t, client, command...)
		if _, _, err := s.Apply(t.Context(), key, v); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("apply to %s: %v", key, err)
		}
		if _, err := s.Get(t.Context(), key); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Errorf("get of %s: %v", key, err)
		}
	}
}
