package etcd

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestShardParticipant(t *testing.T) {
	t.Parallel()
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := serverOr(t, exclusive)
			operator := NewShard(dial(t, server.Addr()), "suite/")
			return paths.At(server, func(t *testing.T, addr string) (drivertest.Branches, error) {
				return branchesOf(NewShard(dial(t, addr), "suite/"), operator), nil
			})
		},
	})
}

// branchesOf a shard reserve nothing before they are prepared, so a write first reads whether a
// prepared branch holds its items. operator bypasses the faults of the paths.
func branchesOf(s, operator *Shard) drivertest.Branches {
	write := func(ctx context.Context, b *ShardBranch, key string, value int) error {
		found, err := operator.Value(ctx, key)
		if err == nil && found.Branch != (driver.XID{}) {
			err = fmt.Errorf("%s is held by %v", key, found.Branch)
		}
		if err != nil {
			return err
		}
		return b.Put(ctx, key, []byte(strconv.Itoa(value)))
	}
	read := func(ctx context.Context, key string) (int, error) {
		value, err := operator.Value(ctx, key)
		if err != nil || value.Version == 0 {
			return 0, err
		}
		return strconv.Atoi(string(value.Data))
	}
	return drivertest.PreparerOf(s, write, read)
}
