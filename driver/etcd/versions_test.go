package etcd

import (
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	drivertest.RunVersions(t, drivertest.VersionsHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.VersionsBackend {
			return paths.At(serverOr(t, exclusive), func(t *testing.T, addr string) (driver.Versions, error) {
				return NewVersions(dial(t, addr), "suite/"), nil
			})
		},
	})
}

func TestVersionsCostOneRequest(t *testing.T) {
	t.Parallel()
	var count counter
	s := NewVersions(dial(t, serverFor(t).Addr(), count.on), "")
	v := func(n int64) driver.Versioned { return driver.Versioned{Stamp: driver.Stamp{Version: n}} }
	before := count.n.Load()
	end := v(3)
	end.Terminal, end.TerminalWins = true, true
	for _, state := range []driver.Versioned{v(1), v(2), v(2), v(1), v(9), end, end, v(10)} {
		if _, _, err := s.Apply(bounded(t), "n", state); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Replace(bounded(t), "n", driver.Stamp{}, v(4)); err != nil {
		t.Fatal(err)
	}
	if got := count.n.Load() - before; got != 9 {
		t.Fatalf("%d requests for 9 calls", got)
	}
}

// TestKeyThatIsNoState is refused, and not replaced.
func TestKeyThatIsNoState(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewVersions(client, "")
	for _, text := range []string{"x", "0000000000000000001", "0000000000000000000x\x00+", "20000000000000000001\x00+", "00000000000000000000\x00+x"} {
		mustPut(t, client, "interlock.version:n", text)
		if _, err := s.Get(bounded(t), "n"); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Fatalf("get of %q: %v", text, err)
		}
	}
	mustPut(t, client, "interlock.version:n", "x")
	v := driver.Versioned{Stamp: driver.Stamp{Version: 1}}
	if _, _, err := s.Apply(bounded(t), "n", v); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("apply: %v", err)
	}
}
