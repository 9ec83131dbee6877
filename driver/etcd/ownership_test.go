package etcd

import (
	"context"
	"fmt"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// TestOwnership: on etcd keys have one owner at a time.
func TestOwnership(t *testing.T) {
	t.Parallel()
	partitiontest.Run(t, nil, func(t *testing.T) partitiontest.World {
		server := serverFor(t)
		p := paths.New[driver.Fenced](server)
		fence := NewFence(dial(t, server.Addr()), "fence/")
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var client *clientv3.Client
				d, err := p.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
					client = dial(t, path.Addr())
					return Open(t.Context(), client, &Options{TTL: suiteTTL})
				})
				testbed.OK(t, err)
				return d, NewValues(client, "values/")
			},
			Crash: p.Crash,
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return fence.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL: suiteTTL,
		}
	})
}

// TestMoveTimes measures planned moves, for docs/reference/performance.md: it reports only.
func TestMoveTimes(t *testing.T) {
	t.Parallel()
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
	server := serverFor(t)
	for partitions, rounds := range map[int]int{2: 100, 64: 10} {
		t.Run(fmt.Sprint(partitions/2, " at once"), func(t *testing.T) {
			partitiontest.MoveTimes(t, func(t *testing.T) (driver.Fenced, driver.Values, func()) {
				client := dial(t, server.Addr())
				d, err := Open(t.Context(), client, &Options{TTL: suiteTTL})
				testbed.OK(t, err)
				return d, NewValues(client, "values/"), func() {}
			}, partitions, rounds)
		})
	}
}
