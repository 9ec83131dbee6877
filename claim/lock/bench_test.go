package lock_test

import (
	"testing"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// What an uncontended pair costs on the memory driver, its own part included.
func TestAllocations(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	locks, err := lock.NewFenced(d, nil)
	testbed.OK(t, err)
	ctx := t.Context()
	pair := func() {
		if c, err := locks.Acquire(ctx, name); err != nil || c.Release(ctx) != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(200, pair); n > 12 {
		t.Errorf("%v allocations for an acquire and a release, at most 12 are allowed", n)
	}
}
