package etcd

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// TestShapes: readers and writers, permits and several names on etcd.
func TestShapes(t *testing.T) {
	t.Parallel()
	rwlocktest.Run(t, paths.At(serverFor(t), func(t *testing.T, addr string) (driver.Fenced, error) {
		return Open(t.Context(), dial(t, addr), &Options{TTL: suiteTTL, Prefix: "shapes/"})
	}))
}

func TestCostOfShapes(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), &Options{TTL: time.Minute})
	rwlocktest.Costs(t, d, count.n.Load)
}
