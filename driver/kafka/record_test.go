package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
)

// TestFillAllocations: records without an id cost no allocation of their own. Their ids are allocated
// together.
func TestFillAllocations(t *testing.T) {
	const n = 500
	a, all := &assignment{}, make([]driver.Received, n)
	allocations := testing.AllocsPerRun(10, func() {
		for i := range all {
			fill(a, &kgo.Record{Offset: int64(i)}, &all[i])
		}
	})
	if all[n-1].ID != "/499" || allocations > n/16 {
		t.Errorf("%d records took %.0f allocations; the last id is %s", n, allocations, all[n-1].ID)
	}
}
