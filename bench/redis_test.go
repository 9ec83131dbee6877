package bench

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const redisNote = "one Redis without persistence; TTL 30 s; "

// polling are peers that poll while they wait.
var polling = []string{"rueidislock", "redislock 2 ms", "redislock exponential", "redsync"}

func redisCases(tb testing.TB) []benchmark {
	server := lazily(tb, testbed.Redis)
	const limit = "SET + EVALSHA"
	cases := distinct("redis", redisNote+"one client of the store, ", server, redisSides, map[int][]compare.Goal{
		1:   {{Metric: compare.P50, Against: []string{limit}, Want: 1.15, AtMost: true}, allocs("", 25), allocs("rueidislock", 0), allocs("redislock 2 ms", 0), allocs("redsync", 0)},
		16:  {faster(limit, 0), faster("rueidislock", 0), faster("redislock 2 ms", 0), faster("redsync", 0)},
		256: {faster(limit, 0), faster("rueidislock", 1.4), faster("redislock 2 ms", 2.5), faster("redsync", 2.5)},
	})
	return append(append(cases, redisHot(server)...), redisIdle(server))
}

// redisHot returns the cases of one contended name.
func redisHot(server func() *testbed.Server) []benchmark {
	hot := func(name, note string, l compare.Locks, goals ...compare.Goal) benchmark {
		return benchmark{Case: compare.Case{Name: name, Note: redisNote + note, Goals: goals, Window: time.Second},
			open: func(tb testing.TB) []compare.Side { return redisSides(tb, server(), l) }}
	}
	const push = "BLPOP token"
	return []benchmark{
		hot("redis/hot/16", "16 clients of the store compete for one name and give it back at once", compare.Locks{Clients: 16, Processes: 16, Hot: true},
			faster(push, 0.6), compare.Goal{Metric: compare.Rate, Against: polling},
			compare.Goal{Metric: "commands", Want: 8, AtMost: true}, compare.Goal{Metric: compare.Fairness, Want: 1.2, AtMost: true}),
		hot("redis/hot-1ms/16", "16 clients of the store compete for one name and hold it for 1 ms", compare.Locks{Clients: 16, Processes: 16, Hot: true, Hold: time.Millisecond},
			faster(push, 0.9), compare.Goal{Metric: compare.P99, Against: polling, Want: 0.125, AtMost: true},
			compare.Goal{Metric: compare.Fairness, Want: 1.2, AtMost: true}),
		hot("redis/hot-1ms/4x16", "4 clients of the store with 16 goroutines each compete for one name and hold it for 1 ms",
			compare.Locks{Clients: 64, Processes: 4, Hot: true, Hold: time.Millisecond},
			compare.Goal{Metric: compare.P99, Want: 0.1, AtMost: true}, faster(push, 0)),
	}
}

// redisSides returns ours, the limits and the peers. The limit of a contest for one name is the
// token that the server pushes, otherwise the two round trips of a lock.
func redisSides(tb testing.TB, server *testbed.Server, l compare.Locks) []compare.Side {
	counter := dialRedis(tb, server)
	l.Commands = func() float64 { return redisCalls(tb, counter, commands) }
	sides := []compare.Side{l.Side("interlock", fencedRedis(tb, server))}
	if l.Hot {
		sides = append(sides, l.Side("BLPOP token", func() compare.Acquire { return tokens(dialRedis(tb, server)) }))
	} else {
		sides = append(sides, l.Side("SET + EVALSHA", func() compare.Acquire { return rawPair(tb, dialRedis(tb, server)) }))
	}
	sides = append(sides,
		l.Side("rueidislock", func() compare.Acquire { return rueidisLock(tb, server) }),
		l.Side("redislock 2 ms", func() compare.Acquire { return redisLock(tb, server, every2ms) }),
		l.Side("redsync", func() compare.Acquire { return redSync(tb, ttl, server) }))
	if l.Hot {
		sides = append(sides, l.Side("redislock exponential", func() compare.Acquire { return redisLock(tb, server, exponential) }))
	}
	return sides
}

func fencedRedis(tb testing.TB, server *testbed.Server) func() compare.Acquire {
	return fenced(tb, func() (driver.Fenced, error) {
		return redis.Open(tb.Context(), dialRedis(tb, server), &redis.Options{TTL: ttl})
	})
}

func dialRedis(tb testing.TB, server *testbed.Server) rueidis.Client {
	client, err := redis.Dial(server.URL())
	ok(tb, err)
	tb.Cleanup(client.Close)
	return client
}

// Calls of all commands, including those in scripts; and of scripts.
var (
	commands = regexp.MustCompile(`calls=(\d+)`)
	scripts  = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)
)

// redisCalls returns how many commands of a kind the server has run.
func redisCalls(tb testing.TB, client rueidis.Client, kind *regexp.Regexp) (sum float64) {
	text, err := client.Do(tb.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	ok(tb, err)
	for _, found := range kind.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		ok(tb, err)
		sum += n
	}
	return sum
}

// idleWindow is long enough for a renewal, which is due every third of the TTL.
const idleWindow = 15 * time.Second

// redisIdle counts the requests of 1,000 idle held locks.
func redisIdle(server func() *testbed.Server) benchmark {
	return benchmark{
		Case: compare.Case{Name: "redis/idle/1000", Note: redisNote + "1,000 locks held for 15 s, renewed in the background; requests are scripts", Rounds: 1, Window: idleWindow,
			Goals: []compare.Goal{{Metric: "requests/s", Want: 2.5, AtMost: true}, {Metric: "goroutines", Want: 10, AtMost: true},
				{Metric: "requests/s", Against: []string{"rueidislock"}}}},
		open: func(tb testing.TB) []compare.Side {
			counter := dialRedis(tb, server())
			count := func() float64 { return redisCalls(tb, counter, scripts) } // both sides renew by them
			return []compare.Side{idle("interlock", fencedRedis(tb, server())(), count), idle("rueidislock", rueidisLock(tb, server()), count)}
		},
	}
}

// quorumCases use five servers of which a majority must agree.
func quorumCases(tb testing.TB) []benchmark {
	servers := sync.OnceValue(func() (all []*testbed.Server) {
		for range 5 {
			all = append(all, testbed.Redis(tb))
		}
		return all
	})
	const ttl = 2 * time.Second // new servers do not vote before it has passed
	sides := func(tb testing.TB, servers []*testbed.Server, l compare.Locks) []compare.Side {
		return []compare.Side{
			l.Side("interlock", func() compare.Acquire { return quorum(tb, ttl, servers) }),
			l.Side("redsync", func() compare.Acquire { return redSync(tb, ttl, servers...) })}
	}
	goal := []compare.Goal{faster("redsync", 1.5)}
	cases := distinct("quorum", "five Redis without persistence; TTL 2 s; one client of each, ", servers, sides, map[int][]compare.Goal{1: goal, 16: goal})
	cases[0].smoke = false
	return cases
}

// quorum returns ours, after a first acquire: new servers do not vote until they are as old as
// a TTL.
func quorum(tb testing.TB, ttl time.Duration, servers []*testbed.Server) compare.Acquire {
	var clients []rueidis.Client
	for _, s := range servers {
		clients = append(clients, dialRedis(tb, s))
	}
	q, err := redis.OpenQuorum(tb.Context(), clients, &redis.QuorumOptions{TTL: ttl})
	ok(tb, err)
	closeAfter(tb, q.Close)
	locks, err := lock.NewAdvisory(q, nil)
	ok(tb, err)
	closeAfter(tb, locks.Close)
	first, err := locks.Acquire(tb.Context(), "first")
	ok(tb, err)
	ok(tb, first.Release(context.Background()))
	return func(ctx context.Context, name string) (uint64, compare.Held, error) {
		c, err := locks.Acquire(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		return 0, c, nil
	}
}
