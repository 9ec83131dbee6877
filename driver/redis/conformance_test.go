package redis

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const suiteTTL = 3 * time.Second

func TestFenced(t *testing.T) {
	h := harness(func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		return Open(ctx, client, &Options{TTL: suiteTTL})
	})
	start := h.Start
	h.Start = func(t *testing.T, exclusive bool) drivertest.Backend {
		return pusher{start(t, exclusive).(*backend)}
	}
	drivertest.RunFenced(t, h)
}

func TestWatcher(t *testing.T) {
	drivertest.RunWatcher(t, harness(func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		return Open(ctx, client, &Options{TTL: suiteTTL})
	}))
}

func TestBatch(t *testing.T) {
	drivertest.RunBatch(t, harness(func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		return Open(ctx, client, &Options{TTL: suiteTTL})
	}))
}

// What is broken and what is kept must outlive a restart, so the server is durable.
func TestBreaker(t *testing.T) {
	open := func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		return Open(ctx, client, &Options{TTL: suiteTTL})
	}
	h := harness(open)
	h.Start = func(t *testing.T, _ bool) drivertest.Backend {
		server := durable(t)
		return &backend{paths.New[driver.Fenced](server), dial(t, server.Addr()), open}
	}
	drivertest.RunBreaker(t, h)
}

func durable(t testing.TB) *testbed.Server {
	return testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
}

func TestValues(t *testing.T) {
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, _ bool) drivertest.ValuesBackend {
			server := durable(t)
			return &valuesBackend{paths.New[driver.Values](server), server.Addr()}
		},
	})
}

// valuesBackend is a server with a path of its own for each reader and writer.
type valuesBackend struct {
	*paths.Server[driver.Values]
	addr string
}

func (b *valuesBackend) Open(t *testing.T) (driver.Values, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Values, error) {
		return NewValues(dial(t, path.Addr()), "config/"), nil
	})
}

func (b *valuesBackend) Beside(t *testing.T) (driver.Values, error) {
	return NewValues(dial(t, b.addr), "config/"), nil
}

func (b *valuesBackend) Faults() drivertest.Faults { return b.Server }

func TestAdvisory(t *testing.T) {
	h := harness(func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		p, err := OpenPlain(ctx, client, &Options{TTL: suiteTTL, Prefix: "plain:"})
		return drivertest.Advisory(p), err
	})
	h.Without = drivertest.FIFO | drivertest.LostPushes
	drivertest.RunAdvisory(t, h)
}

type opener func(context.Context, rueidis.Client) (driver.Fenced, error)

func harness(open opener) drivertest.Harness {
	return drivertest.Harness{
		Start: func(t *testing.T, _ bool) drivertest.Backend {
			server := testbed.Redis(t)
			return &backend{paths.New[driver.Fenced](server), dial(t, server.Addr()), open}
		},
		TTL:        suiteTTL,
		Heartbeat:  heartbeat,
		DeadWaiter: acceptFor + 2*heartbeat + 500*time.Millisecond,
	}
}

// dial connects a client for the time of the test.
func dial(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	client, err := Dial("redis://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// backend is a server with a path of its own for each driver.
type backend struct {
	*paths.Server[driver.Fenced]
	operator rueidis.Client // past every fault of the paths
	open     opener
}

func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		client, err := Dial("redis://" + path.Addr())
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return b.open(t.Context(), client)
	})
}

func (b *backend) Faults() drivertest.Faults { return b.Server }

// pusher is the backend of queue mode.
type pusher struct{ *backend }

func (pusher) DropPushes(t *testing.T, d driver.Fenced) { d.(*Driver).pushes.stop(t.Context()) }

func (b *backend) Residue(t *testing.T, name string) []string {
	var left []string
	for _, lock := range []string{name, "plain:" + name} {
		k := keysOf(lock)
		for _, key := range []string{k.lock, k.hold, k.queue, k.wait} {
			left = append(left, b.members(t, key)...)
		}
	}
	return left
}

// members is a key with its content; nothing if it does not exist.
func (b *backend) members(t *testing.T, key string) []string {
	t.Helper()
	do := func(command ...string) rueidis.RedisResult {
		return b.operator.Do(context.Background(), b.operator.B().Arbitrary(command...).Build())
	}
	kind, err := do("TYPE", key).ToString()
	if err != nil {
		t.Fatal(err)
	}
	var content []string
	switch kind {
	case "none":
		return nil
	case "string":
		value, e := do("GET", key).ToString()
		content, err = []string{value}, e
	case "zset":
		content, err = do("ZRANGE", key, "0", "-1").AsStrSlice()
	case "hash":
		fields, e := do("HGETALL", key).AsStrMap()
		content, err = slices.Sorted(maps.Keys(fields)), e
	}
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	for i := range content {
		content[i] = key + " = " + content[i]
	}
	return content
}

func (b *backend) Delete(t *testing.T, name string) {
	for _, lock := range []string{name, "plain:" + name} {
		// The connection may be one to the server before it was restarted.
		testbed.Eventually(t, "the operator's deletion", bound, func() bool {
			return b.operator.Do(t.Context(), b.operator.B().Del().Key(lock).Build()).Error() == nil
		})
	}
}
