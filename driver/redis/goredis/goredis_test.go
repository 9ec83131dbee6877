package goredis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	adapter "github.com/interlock-dev/interlock/driver/redis/goredis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// theirs returns a client as users of go-redis have it.
func theirs(t *testing.T, addr string) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A client with sentinels connects to the new master after a failover.
func TestFailover(t *testing.T) {
	t.Parallel()
	master := testbed.Redis(t)
	testbed.Replica(t, master)
	sentinel := testbed.Sentinel(t, master)
	testbed.SentinelKnows(t, sentinel, 1)
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr()}})
	defer c.Close()
	client, err := adapter.Client(c, redis.Settings{})
	testbed.OK(t, err)
	defer client.Close()
	f, token := redis.NewFence(client), interlock.Token(1<<12)
	testbed.OK(t, f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token}))
	master.Kill()
	testbed.Eventually(t, "the new master answers", 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return f.Enter(ctx, driver.Raise{Resource: "r", Token: token}) == nil
	})
}

// handOver acquires a lock, and hands it to a waiter.
func handOver(t *testing.T, client rueidis.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	d, err := redis.Open(ctx, client, nil)
	testbed.OK(t, err)
	defer d.Close(context.WithoutCancel(ctx))
	if _, err := d.Acquire(ctx, driver.Request{Name: "x", Owner: "first"}); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan driver.Place, 64)
	served := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, driver.Request{Name: "x", Owner: "second", Events: driver.Events{Waiting: func(p driver.Place) { waiting <- p }}})
		served <- err
	}()
	select {
	case <-waiting:
	case err := <-served:
		t.Fatalf("granted although it is held, or failed: %v", err)
	}
	if err := errors.Join(d.Release(ctx, "x", "first"), <-served, d.Release(ctx, "x", "second")); err != nil {
		t.Error(err)
	}
}

// Database, account and providers are those of the client; a cluster stays a
// cluster.
func TestWhatIsTakenOver(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := theirs(t, server.Addr())
	testbed.OK(t, operator.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all").Err())
	for what, o := range map[string]*goredis.Options{
		"password": {DB: 1, Username: "app", Password: "pw"},
		"provider": {DB: 2, CredentialsProvider: func() (string, string) { return "app", "pw" }},
		"provider with context": {DB: 3, Protocol: 2, CredentialsProviderContext: func(context.Context) (string, string, error) {
			return "app", "pw", nil
		}},
	} {
		o.Addr = server.Addr()
		c := goredis.NewClient(o)
		defer c.Close()
		client, err := adapter.Client(c, redis.Settings{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer client.Close()
		user, err := client.Do(t.Context(), client.B().AclWhoami().Build()).ToString()
		if err != nil || user != "app" {
			t.Errorf("%s: %q, %v", what, user, err)
		}
		if err := client.Do(t.Context(), client.B().Set().Key("k").Value(what).Build()).Error(); err != nil {
			t.Error(err)
		}
		if got := c.Get(t.Context(), "k").Val(); got != what {
			t.Errorf("%s: its database has %q", what, got)
		}
		handOver(t, client)
	}
	cluster := testbed.RedisCluster(t, false)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{cluster.Servers[0].Addr()}})
	defer c.Close()
	client, err := adapter.Client(c, redis.Settings{})
	testbed.OK(t, err)
	defer client.Close()
	for _, resource := range []string{"a", "b", "c", "d"} {
		if err := redis.NewFence(client).Enter(t.Context(), driver.Raise{Resource: resource, Token: 1 << 12}); err != nil {
			t.Error(err)
		}
	}
	handOver(t, client)
}

func TestWhatCannotBeTakenOver(t *testing.T) {
	t.Parallel()
	connect := func(context.Context, *goredis.Conn) error { return nil }
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	with := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", OnConnect: connect})
	nobody := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	for _, c := range []struct {
		client goredis.UniversalClient
		kind   interlock.ErrorKind
		want   string
	}{
		{ring, interlock.Definite, "*redis.Ring is not supported"},
		{with, interlock.Definite, "OnConnect"},
		{nil, interlock.Definite, "<nil> is not supported"},
		{nobody, interlock.Retryable, "connection refused"},
	} {
		_, err := adapter.Client(c.client, redis.Settings{})
		if interlock.Kind(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: %v: %v", c.client, interlock.Kind(err), err)
		}
		if c.client != nil {
			_ = c.client.Close()
		}
	}
}
