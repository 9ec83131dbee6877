package branchhttp

import (
	"net/http"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestAllocations bounds the allocations for the headers of a sent call.
func TestAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector changes the count")
	}
	c := branch.Call{Transaction: "order/42", Branch: "reserve", Operation: branch.Do, Attempt: 1, Epoch: 1 << 40,
		Begun: time.UnixMilli(1_800_000_000_000), Deadline: time.UnixMilli(1_800_000_030_000)}
	n := testing.AllocsPerRun(100, func() {
		testbed.OK(t, SetHeaders(http.Header{}, c))
	})
	if n > 10 {
		t.Errorf("%v allocations, at most 10", n)
	}
}
