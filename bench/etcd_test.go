package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const etcdNote = "one etcd that syncs to disk, by gRPC; TTL 30 s; "

func etcdCases(tb testing.TB) []benchmark {
	server := lazily(tb, testbed.Etcd)
	const mutex = "concurrency.Mutex"
	cases := distinct("etcd", etcdNote, server, etcdSides, map[int][]compare.Goal{
		1:   {faster(mutex, 1), allocs("", 200), allocs(mutex, 0)},
		16:  {faster(mutex, 1)},
		256: {faster(mutex, 1)},
	})
	for _, h := range []struct {
		clients int
		times   float64
	}{{2, 60}, {16, 6}} {
		cases = append(cases, benchmark{
			Case: compare.Case{Name: fmt.Sprintf("etcd/hot/%d", h.clients), Window: time.Second,
				Note: etcdNote + fmt.Sprintf("%d clients of etcd compete for one name and give it back at once", h.clients),
				Goals: []compare.Goal{faster(mutex, h.times), faster("put and watch", 0.7),
					{Metric: compare.Fairness, Want: 1.2, AtMost: true}}},
			open: func(tb testing.TB) []compare.Side {
				sides := etcdSides(tb, server(), compare.Locks{Clients: h.clients, Processes: h.clients, Hot: true})
				return append(sides, putAndWatch(dialEtcd(tb, server()), dialEtcd(tb, server())))
			},
		})
	}
	return cases
}

// etcdSides returns our lock and etcd's own, each with a session per process.
func etcdSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	return []compare.Side{
		l.Side("interlock", fenced(tb, func() (driver.Fenced, error) {
			return etcd.Open(tb.Context(), dialEtcd(tb, server), &etcd.Options{Prefix: "interlock/", TTL: ttl})
		})),
		l.Side("concurrency.Mutex", func() compare.Acquire { return etcdMutex(tb, dialEtcd(tb, server)) }),
	}
}

func dialEtcd(tb testing.TB, server *testbed.Server) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL()}, Logger: zap.NewNop()})
	ok(tb, err)
	tb.Cleanup(func() { ok(tb, client.Close()) })
	return client
}

// etcdCommit puts a key.
func etcdCommit(client *clientv3.Client) commit {
	return func(ctx context.Context) error {
		_, err := client.Put(ctx, fmt.Sprintf("one/%d", fresh.Add(1)), filler)
		return err
	}
}

// etcdMutex returns etcd's own lock. The revision of its key is a token.
func etcdMutex(tb testing.TB, client *clientv3.Client) compare.Acquire {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl.Seconds())))
	ok(tb, err)
	tb.Cleanup(func() { ok(tb, session.Close()) })
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		m := concurrency.NewMutex(session, "mutex/"+name)
		if err := m.Lock(ctx); err != nil {
			return 0, nil, err
		}
		return uint64(m.Header().Revision), compare.Release(m.Unlock), nil
	}
}

// putAndWatch measures the limit of a contended lock: one client puts a key, and another receives it
// over an open watch.
func putAndWatch(putter, watcher *clientv3.Client) compare.Side {
	return compare.Side{Name: "put and watch", Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		key := fmt.Sprint("limit/", fresh.Add(1))
		events := watcher.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithCreatedNotify())
		if created, open := <-events; !open || !created.Created {
			return compare.Sample{}, errors.New("the watch was not created")
		}
		return compare.Drive(ctx, 1, window, func(ctx context.Context, _ int) error {
			if _, err := putter.Put(ctx, key, ""); err != nil {
				return err
			}
			if _, open := <-events; !open {
				return errors.New("the watch ended")
			}
			return nil
		})
	}}
}
