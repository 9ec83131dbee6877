package etcd

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/rwlock/rwlocktest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// TestShapes: readers and writers, permits and several names on etcd.
func TestShapes(t *testing.T) {
	t.Parallel()
	p := paths.New[driver.Fenced](serverFor(t))
	rwlocktest.Run(t, rwlocktest.World{TTL: suiteTTL, Crash: p.Crash, Open: func(t *testing.T) driver.Fenced {
		t.Helper()
		d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
			return Open(t.Context(), dial(t, path.Addr()), &Options{TTL: suiteTTL, Prefix: "shapes/"})
		})
		testbed.OK(t, err)
		return d
	}})
}

func TestCostOfShapes(t *testing.T) {
	t.Parallel()
	var count counter
	d := open(t, dial(t, serverFor(t).Addr(), count.on), &Options{TTL: time.Minute})
	rwlocktest.Costs(t, d, count.n.Load)
}
