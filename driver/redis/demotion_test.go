package redis

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// A master that becomes a replica keeps its connections. Clients leave it, and find the new master if
// their address leads there.
func TestDemotedMasterIsLeft(t *testing.T) {
	t.Parallel()
	former, next := testbed.Redis(t), testbed.Redis(t)
	var master atomic.Value
	master.Store(former.Addr())
	connect := func() rueidis.Client {
		client, err := Connect(rueidis.ClientOption{InitAddress: []string{"master:6379"}, ForceSingleClient: true,
			DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", master.Load().(string))
			}}, Settings{})
		testbed.OK(t, err)
		t.Cleanup(client.Close)
		return client
	}
	locks, guard := openWith(t, connect(), nil), NewFence(connect())
	owner, grant := take(t, locks, "x")
	release(t, locks, "x", owner)
	enter := func(ctx context.Context) error {
		return guard.Enter(ctx, driver.Raise{Resource: "r", Token: grant.Token})
	}
	testbed.OK(t, enter(t.Context()))
	host, port, _ := net.SplitHostPort(next.Addr())
	mustDo(t, dial(t, former.Addr()), "REPLICAOF", host, port)
	master.Store(next.Addr())
	again := driver.Request{Name: "x", Owner: newOwner()}
	insist(t, "acquire from the new master", func(ctx context.Context) error {
		_, err := locks.Acquire(ctx, again)
		return err
	})
	insist(t, "enter at the new master", enter)
}
