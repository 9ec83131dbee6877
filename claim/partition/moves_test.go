package partition_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMoveTimes measures planned moves, for docs/reference/performance.md: it reports only.
// etcd's is in its driver.
func TestMoveTimes(t *testing.T) {
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
	for name, start := range map[string]func() string{
		"redis":          func() string { return "redis://" + testbed.Redis(t).Addr() },
		"postgres":       func() string { return testbed.Postgres(t).URL() },
		"postgres table": func() string { return testbed.Postgres(t).URL() + "&mode=table" },
		"zookeeper":      func() string { return "zookeeper://" + testbed.ZooKeeper(t).Addr() },
	} {
		url := start()
		open := func(t *testing.T) (driver.Fenced, driver.Values, func()) {
			b, err := backend.Open(t.Context(), url)
			testbed.OK(t, err)
			d, err := b.Fenced(t.Context(), backend.LockOptions{TTL: ttl})
			testbed.OK(t, err)
			v, err := b.Values(t.Context(), "")
			testbed.OK(t, err)
			return d, v, func() { _ = b.Close(context.Background()) }
		}
		for partitions, rounds := range map[int]int{2: 100, 64: 10} {
			t.Run(fmt.Sprint(name, "/", partitions/2, " at once"), func(t *testing.T) { partitiontest.MoveTimes(t, open, partitions, rounds) })
		}
	}
}
