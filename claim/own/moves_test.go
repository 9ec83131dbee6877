package own_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/own"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestMoveTimes measures how long a partition has no owner while it moves as
// planned: from the end of its work's context in one member to the begin of its
// work in another. It is for docs/performance.md, and reports only.
func TestMoveTimes(t *testing.T) {
	if os.Getenv("INTERLOCK_BENCH") != "full" {
		t.Skip("it measures: set INTERLOCK_BENCH=full")
	}
	for name, start := range map[string]func(t *testing.T) opening{
		"redis": func(t *testing.T) opening {
			server := testbed.Redis(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func(), error) {
				client := dialRedis(t, server.Addr())
				d, err := redis.Open(t.Context(), client, &redis.Options{TTL: ttl})
				return d, redis.NewValues(client, ""), client.Close, err
			}
		},
		"postgres sessions": func(t *testing.T) opening {
			server := testbed.Postgres(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func(), error) {
				pool := dialPostgres(t, server.Addr())
				d, err := postgres.Open(t.Context(), pool.Config().ConnConfig, &postgres.Options{TTL: ttl})
				return d, postgres.NewValues(pool, "layouts"), pool.Close, err
			}
		},
		"postgres table": func(t *testing.T) opening {
			server := testbed.Postgres(t)
			return func(t *testing.T) (driver.Fenced, driver.Values, func(), error) {
				pool := dialPostgres(t, server.Addr())
				d, err := postgres.OpenTable(t.Context(), pool, &postgres.TableOptions{TTL: ttl})
				return d, postgres.NewValues(pool, "layouts"), pool.Close, err
			}
		},
	} {
		open := start(t)
		for partitions, rounds := range map[int]int{2: 100, 64: 10} {
			t.Run(fmt.Sprint(name, "/", partitions/2, " at once"), func(t *testing.T) {
				measureMoves(t, open, partitions, rounds)
			})
		}
	}
}

func measureMoves(t *testing.T, open opening, partitions, rounds int) {
	m := &moves{open: open, group: fmt.Sprint("of ", partitions), partitions: partitions, ended: map[int]time.Time{}}
	stay := m.join(t, "stays")
	for round := range rounds {
		comes := m.join(t, fmt.Sprint("comes ", round))
		comes.settled(t, partitions/2)
		comes.leave(t)
		stay.settled(t, partitions)
	}
	stay.leave(t)
	slices.Sort(m.took)
	at := func(percent int) time.Duration { return m.took[len(m.took)*percent/100].Round(100 * time.Microsecond) }
	t.Logf("%d moves: median %v, p99 %v", len(m.took), at(50), at(99))
}

type opening func(t *testing.T) (driver.Fenced, driver.Values, func(), error)

// moves is a group whose members come and go.
type moves struct {
	open       opening
	group      string
	partitions int

	mu    sync.Mutex
	ended map[int]time.Time // when the work of the last owner was told to end
	took  []time.Duration
}

type joined struct {
	*own.Group
	driver     driver.Fenced
	disconnect func()
}

func (m *moves) join(t *testing.T, identity string) joined {
	t.Helper()
	d, v, disconnect, err := m.open(t)
	if err != nil {
		t.Fatal(err)
	}
	g, err := own.Join(t.Context(), d, v, m.group, own.Layout{Partitions: m.partitions}, &own.Options{Identity: identity, Work: m.work})
	if err != nil {
		t.Fatal(err)
	}
	return joined{g, d, disconnect}
}

func (m *moves) work(ctx context.Context, p own.Partition) error {
	m.mu.Lock()
	if ended, moved := m.ended[p.Index]; moved {
		m.took = append(m.took, time.Since(ended))
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.ended[p.Index] = time.Now()
	m.mu.Unlock()
	return nil
}

func (g joined) settled(t *testing.T, owned int) {
	t.Helper()
	testbed.Eventually(t, fmt.Sprintf("%s owns %d partitions", g.Self().Identity, owned), 60*time.Second, func() bool { return len(g.Owned()) == owned })
}

func (g joined) leave(t *testing.T) {
	t.Helper()
	if err := g.Leave(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := g.driver.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	g.disconnect()
}
