package backend

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/redis"
)

// Values connects to the small values that a lock service keeps under tokens,
// behind a prefix; disconnect ends that. The context bounds the opening only.
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
	}
	return nil, nil, &URLError{"there are no elections on " + t.kind + " yet, only guards; use an etcd:// or redis:// URL"}
}
