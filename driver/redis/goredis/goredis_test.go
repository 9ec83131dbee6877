package goredis_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/redis"
	adapter "github.com/interlock-dev/interlock/driver/redis/goredis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const suiteTTL = 3 * time.Second

func TestFenced(t *testing.T) { drivertest.RunFenced(t, harness()) }

func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, harness()) }

func harness() drivertest.Harness {
	return drivertest.Harness{
		Start: func(t *testing.T, _ bool) drivertest.Backend {
			server := testbed.Redis(t)
			return &backend{paths.New[driver.Fenced](server), theirs(t, server.Addr())}
		},
		TTL: suiteTTL, Heartbeat: 500 * time.Millisecond, DeadWaiter: 2500 * time.Millisecond,
		Without: drivertest.LostPushes,
	}
}

// theirs is a client that a user of go-redis has.
func theirs(t *testing.T, addr string) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// backend is a server with a path of its own for each driver.
type backend struct {
	*paths.Server[driver.Fenced]
	operator *goredis.Client // past every fault of the paths
}

func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		client, err := adapter.Client(theirs(t, path.Addr()), redis.Settings{})
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return redis.Open(t.Context(), client, &redis.Options{TTL: suiteTTL})
	})
}

func (b *backend) Faults() drivertest.Faults { return b.Server }

func (b *backend) Residue(t *testing.T, name string) []string {
	keys, err := b.operator.Keys(context.Background(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, key := range keys {
		if key == name || strings.HasPrefix(key, "interlock:{") && strings.HasSuffix(key, ":"+name) {
			left = append(left, key)
		}
	}
	return left
}

func (b *backend) Delete(t *testing.T, name string) {
	testbed.Eventually(t, "the operator's deletion", 20*time.Second, func() bool {
		return b.operator.Del(t.Context(), name).Err() == nil
	})
}

func TestFence(t *testing.T) {
	drivertest.RunFence(t, drivertest.FenceHarness{Start: func(t *testing.T) drivertest.FenceBackend {
		server := testbed.Redis(t)
		return &store{paths.New[driver.Fence](server), theirs(t, server.Addr())}
	}})
}

// store is a server with guarded data and a path of its own for each fence.
type store struct {
	*paths.Server[driver.Fence]
	operator *goredis.Client
}

func (s *store) Open(t *testing.T) (driver.Fence, error) {
	return s.Lead(t, func(path *testbed.Proxy) (driver.Fence, error) {
		client, err := adapter.Client(theirs(t, path.Addr()), redis.Settings{})
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return redis.NewFence(client), nil
	})
}

func (s *store) Get(t *testing.T, key string) ([]byte, bool) {
	value, err := s.operator.Get(t.Context(), key).Bytes()
	if err != nil && !errors.Is(err, goredis.Nil) {
		t.Fatal(err)
	}
	return value, err == nil
}

func (s *store) Rebases(t *testing.T, resource string) (all []drivertest.Rebased) {
	t.Helper()
	keys, err := s.operator.Keys(t.Context(), "interlock:{*:rebase:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if !strings.HasSuffix(key, ":rebase:"+resource) {
			continue
		}
		for _, text := range s.operator.LRange(t.Context(), key, 0, -1).Val() {
			var r struct {
				From, To   interlock.Token `json:",string"`
				Reason, By string
			}
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				t.Fatal(err)
			}
			all = append(all, drivertest.Rebased{From: r.From, To: r.To, Reason: r.Reason, By: r.By})
		}
	}
	return all
}

// A client that asks sentinels goes to the new master after a failover.
func TestFailover(t *testing.T) {
	t.Parallel()
	master := testbed.Redis(t)
	testbed.Replica(t, master)
	sentinel := testbed.Sentinel(t, master)
	testbed.SentinelKnows(t, sentinel, 1)
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr()}})
	defer c.Close()
	client, err := adapter.Client(c, redis.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	f, token := redis.NewFence(client), interlock.Token(1<<12)
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token}); err != nil {
		t.Fatal(err)
	}
	master.Kill()
	testbed.Eventually(t, "the new master answers", 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return f.Enter(ctx, driver.Raise{Resource: "r", Token: token}) == nil
	})
}

// Database, account and providers are those of the client; a cluster is one.
func TestWhatIsTakenOver(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := theirs(t, server.Addr())
	if err := operator.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
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
	}
	cluster := testbed.RedisCluster(t, false)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{cluster.Servers[0].Addr()}})
	defer c.Close()
	client, err := adapter.Client(c, redis.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, resource := range []string{"a", "b", "c", "d"} {
		if err := redis.NewFence(client).Enter(t.Context(), driver.Raise{Resource: resource, Token: 1 << 12}); err != nil {
			t.Error(err)
		}
	}
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
