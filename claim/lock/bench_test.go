package lock_test

import (
	"testing"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
)

// BenchmarkUncontended is one Acquire and one Release of a name that nobody else wants,
// with the memory driver: what the lock itself costs.
func BenchmarkUncontended(b *testing.B) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(b.Context())
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c, err := locks.Acquire(b.Context(), name)
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
