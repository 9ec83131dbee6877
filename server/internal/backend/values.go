package backend

import (
	"cmp"
	"context"
	"slices"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
)

// valueTable is the table of values beside the tables of locks.
func (t Target) valueTable() string {
	return cmp.Or(t.own.Get("namespace"), postgres.DefaultNamespace) + "_value"
}

// KeepsValues reports whether a lock service keeps small values under tokens.
func (t Target) KeepsValues() bool {
	return slices.Contains([]string{"etcd", "redis", "postgres", "zookeeper"}, t.kind)
}

// Values connects to the small values that a lock service keeps under tokens,
// behind a prefix; disconnect ends that. Where there are none, v
// is nil. The context bounds the opening only.
func (t Target) Values(ctx context.Context, prefix string) (v driver.Values, disconnect func(), err error) {
	switch t.kind {
	case "etcd":
		client, err := t.dialEtcd(ctx)
		if err != nil {
			return nil, nil, err
		}
		return etcd.NewValues(client, prefix), func() { _ = client.Close() }, nil
	case "redis":
		client, err := t.dialRedis()
		if err != nil {
			return nil, nil, err
		}
		return redis.NewValues(client, prefix), client.Close, nil
	case "postgres":
		pool, err := t.dialPostgres(ctx)
		if err != nil {
			return nil, nil, err
		}
		return belowValues(prefix, postgres.NewValues(pool, t.valueTable())), pool.Close, nil
	case "zookeeper":
		v, disconnect, err := t.zookeeperValues(ctx)
		if err != nil {
			return nil, nil, err
		}
		return belowValues(prefix, v), disconnect, nil
	}
	return nil, nothing, nil
}
