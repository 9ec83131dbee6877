package redis

import (
	"context"
	"log"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("REDIS_TEST_CHILD"); addr != "" {
		log.Fatal(consumeStream(addr, os.Getenv("REDIS_TEST_PREFIX"), os.Getenv("REDIS_TEST_GUARD")))
	}
	testbed.Main(m)
}

const suiteTTL = 2 * time.Second

// Not parallel: it counts leftover goroutines.
func TestFenced(t *testing.T) {
	h := harness(alone(), openQueue)
	start := h.Start
	h.Start = func(t *testing.T, exclusive bool) drivertest.Backend {
		return pusher{start(t, exclusive).(*system)}
	}
	drivertest.RunFenced(t, h)
}

func TestWatcher(t *testing.T) {
	t.Parallel()
	drivertest.RunWatcher(t, harness(alone(), openQueue))
}

func TestBatch(t *testing.T) {
	t.Parallel()
	drivertest.RunBatch(t, harness(alone(), openQueue))
}

// Breaks and values must survive a restart, so the server is durable.
func TestBreaker(t *testing.T) {
	t.Parallel()
	drivertest.RunBreaker(t, harness(durable, openQueue))
}

func TestValues(t *testing.T) {
	t.Parallel()
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Values { return NewValues(client, "config/") }),
	})
}

func TestAdvisory(t *testing.T) {
	t.Parallel()
	h := harness(alone(), func(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
		p, err := OpenPlain(ctx, client, &Options{TTL: suiteTTL, Prefix: "plain:"})
		return drivertest.Advisory(p), err
	})
	h.Without = drivertest.FIFO | drivertest.LostPushes | drivertest.Alone
	drivertest.RunAdvisory(t, h)
}

type opener func(ctx context.Context, client rueidis.Client) (driver.Fenced, error)

func openQueue(ctx context.Context, client rueidis.Client) (driver.Fenced, error) {
	return Open(ctx, client, &Options{TTL: suiteTTL})
}

func harness(in sites, open opener) drivertest.Harness {
	return drivertest.Harness{
		Start: func(t *testing.T, exclusive bool) drivertest.Backend {
			at := in(t, exclusive)
			return &system{led[driver.Fenced](at), at, at.beside(t), open}
		},
		TTL:        suiteTTL,
		Heartbeat:  heartbeat,
		DeadWaiter: acceptFor + 2*heartbeat + 500*time.Millisecond,
	}
}

// dial connects a client until the test ends.
func dial(t testing.TB, addr string) rueidis.Client {
	t.Helper()
	client, err := Dial("redis://" + addr)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	return client
}

// system is a server with its own path for each driver.
type system struct {
	*paths.Server[driver.Fenced]
	at       site
	operator rueidis.Client // bypasses the faults of the paths
	open     opener
}

func (b *system) Open(t *testing.T) (driver.Fenced, error) {
	return b.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		client, err := b.at.through(t, path)
		if err != nil {
			return nil, err
		}
		return b.open(t.Context(), client)
	})
}

func (b *system) Faults() drivertest.Faults { return b.Server }

// pusher is the backend of queue mode.
type pusher struct{ *system }

func (pusher) DropPushes(t *testing.T, d driver.Fenced) { d.(*Driver).pushes.stop(t.Context()) }

// locksOf returns the keys of the locks that may have the name.
func locksOf(name string) []string {
	return []string{name, "plain:" + name}
}

func (b *system) Residue(t *testing.T, name string) []string {
	var left []string
	for _, lock := range locksOf(name) {
		k := keysOf(lock)
		for _, key := range []string{k.lock, k.queue, k.wait} {
			left = append(left, b.members(t, key)...)
		}
	}
	return left
}

// members returns a key with its content; nothing if it does not exist.
func (b *system) members(t *testing.T, key string) []string {
	t.Helper()
	do := func(command ...string) rueidis.RedisResult {
		return b.operator.Do(context.Background(), b.operator.B().Arbitrary(command...).Build())
	}
	kind, err := do("TYPE", key).ToString()
	testbed.OK(t, err)
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

func (b *system) Delete(t *testing.T, name string) {
	for _, lock := range locksOf(name) {
		// The connection may lead to the server before its restart.
		testbed.Eventually(t, "the operator's deletion", bound, func() bool {
			return b.operator.Do(t.Context(), b.operator.B().Del().Key(lock).Build()).Error() == nil
		})
	}
}
