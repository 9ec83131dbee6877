package etcd

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestShardParticipant(t *testing.T) {
	t.Parallel()
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := serverOr(t, exclusive)
			return vault{paths.New[drivertest.Branches](server), NewShard(dial(t, server.Addr()), "suite/")}
		},
	})
}

// vault is a server with its own path for each opening of its shard.
type vault struct {
	*paths.Server[drivertest.Branches]
	operator *Shard // bypasses the faults of the paths
}

func (v vault) Open(t *testing.T) (drivertest.Branches, error) {
	return v.Lead(t, func(path *testbed.Proxy) (drivertest.Branches, error) {
		return v.branches(NewShard(dial(t, path.Addr()), "suite/")), nil
	})
}

func (v vault) Beside(*testing.T) (drivertest.Branches, error) { return v.branches(v.operator), nil }

func (v vault) Faults() drivertest.Faults { return v.Server }

// branches of a shard reserve nothing before they are prepared, so a write first
// reads whether a prepared branch holds its items.
func (v vault) branches(s *Shard) drivertest.Branches {
	write := func(ctx context.Context, b *ShardBranch, key string, value int) error {
		there, err := v.operator.Value(ctx, key)
		if err == nil && there.Branch != (driver.XID{}) {
			err = fmt.Errorf("%s is held by %v", key, there.Branch)
		}
		if err != nil {
			return err
		}
		return b.Put(ctx, key, []byte(strconv.Itoa(value)))
	}
	read := func(ctx context.Context, key string) (int, error) {
		there, err := v.operator.Value(ctx, key)
		if err != nil || there.Version == 0 {
			return 0, err
		}
		return strconv.Atoi(string(there.Data))
	}
	return drivertest.PreparerOf(s, write, read)
}
