package redis

import (
	"testing"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Measures what an uncontended pair costs the process, including the client.
func TestAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector empties pools, which changes the count")
	}
	d := openOn(t, testbed.Redis(t).Addr(), nil)
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(t, err)
	openDirect(t, d)
	ctx := t.Context()
	pair := func() {
		if c, err := locks.Acquire(ctx, "free"); err != nil || c.Release(ctx) != nil {
			t.Fatal(err)
		}
	}
	n := testing.AllocsPerRun(200, pair)
	for range 10 { // a renewal or another goroutine of a busy machine adds to a round
		n = min(n, testing.AllocsPerRun(20, pair))
	}
	t.Logf("%v allocations", n)
	if n > 13 {
		t.Errorf("%v allocations for an acquire and a release, at most 13 are allowed", n)
	}
}
