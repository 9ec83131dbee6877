package bench

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const redisNote = "one Redis without persistence; TTL 30 s; "

// polling are peers that poll while they wait.
var polling = []string{"rueidislock", "redislock 2 ms", "redislock exponential", "redsync"}

func redisCases(tb testing.TB) []benchmark {
	server := sync.OnceValue(func() *testbed.Server { return testbed.Redis(tb) })
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
	hot := func(name, note string, c contest, goals ...compare.Goal) benchmark {
		return benchmark{Case: compare.Case{Name: name, Note: redisNote + note, Goals: goals, Window: time.Second},
			open: func(tb testing.TB) []compare.Side { return redisSides(tb, server(), c) }}
	}
	const push = "BLPOP token"
	return []benchmark{
		hot("redis/hot/16", "16 clients of the store compete for one name and give it back at once", contest{clients: 16, processes: 16, hot: true},
			faster(push, 0.6), compare.Goal{Metric: compare.Rate, Against: polling},
			compare.Goal{Metric: "commands", Want: 8, AtMost: true}, compare.Goal{Metric: compare.Fairness, Want: 1.2, AtMost: true}),
		hot("redis/hot-1ms/16", "16 clients of the store compete for one name and hold it for 1 ms", contest{clients: 16, processes: 16, hot: true, hold: time.Millisecond},
			faster(push, 0.9), compare.Goal{Metric: compare.P99, Against: polling, Want: 0.125, AtMost: true},
			compare.Goal{Metric: compare.Fairness, Want: 1.2, AtMost: true}),
		hot("redis/hot-1ms/4x16", "4 clients of the store with 16 goroutines each compete for one name and hold it for 1 ms",
			contest{clients: 64, processes: 4, hot: true, hold: time.Millisecond},
			compare.Goal{Metric: compare.P99, Want: 0.1, AtMost: true}, faster(push, 0)),
	}
}

// redisSides returns ours, the limits and the peers. The limit of a contest for one name is the
// token that the server pushes, otherwise the two round trips of a lock.
func redisSides(tb testing.TB, server *testbed.Server, c contest) []compare.Side {
	counter := dialRedis(tb, server)
	count := func() float64 { return redisCommands(tb, counter) }
	sides := []compare.Side{c.side("interlock", func() acquire {
		d, err := redis.Open(tb.Context(), dialRedis(tb, server), &redis.Options{TTL: ttl})
		ok(tb, err)
		return fenced(tb, d)
	}, count)}
	if c.hot {
		sides = append(sides, c.side("BLPOP token", func() acquire { return tokens(dialRedis(tb, server)) }, count))
	} else {
		sides = append(sides, c.side("SET + EVALSHA", func() acquire { return rawPair(tb, dialRedis(tb, server)) }, count))
	}
	sides = append(sides,
		c.side("rueidislock", func() acquire { return rueidisLock(tb, server) }, count),
		c.side("redislock 2 ms", func() acquire { return redisLock(tb, server, every2ms) }, count),
		c.side("redsync", func() acquire { return redSync(tb, ttl, server) }, count))
	if c.hot {
		sides = append(sides, c.side("redislock exponential", func() acquire { return redisLock(tb, server, exponential) }, count))
	}
	return sides
}

func dialRedis(tb testing.TB, server *testbed.Server) rueidis.Client {
	client, err := redis.Dial(server.URL())
	ok(tb, err)
	tb.Cleanup(client.Close)
	return client
}

var calls = regexp.MustCompile(`calls=(\d+)`)

// redisCommands returns how many commands the server has run, including those in scripts.
func redisCommands(tb testing.TB, client rueidis.Client) (sum float64) {
	text, err := client.Do(tb.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	ok(tb, err)
	for _, found := range calls.FindAllStringSubmatch(text, -1) {
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
			count := func() float64 { return redisScripts(tb, counter) }
			d, err := redis.Open(tb.Context(), dialRedis(tb, server()), &redis.Options{TTL: ttl})
			ok(tb, err)
			return []compare.Side{idle("interlock", fenced(tb, d), count), idle("rueidislock", rueidisLock(tb, server()), count)}
		},
	}
}

var evalsha = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

// redisScripts returns how many scripts the server has received: both sides renew by them.
func redisScripts(tb testing.TB, client rueidis.Client) float64 {
	text, err := client.Do(tb.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	ok(tb, err)
	found := evalsha.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, err := strconv.ParseFloat(found[1], 64)
	ok(tb, err)
	return n
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
	open := func(tb testing.TB, c contest) []compare.Side {
		return []compare.Side{
			c.side("interlock", func() acquire { return quorum(tb, ttl, servers()) }, nil),
			c.side("redsync", func() acquire { return redSync(tb, ttl, servers()...) }, nil)}
	}
	var cases []benchmark
	for _, clients := range []int{1, 16} {
		cases = append(cases, benchmark{
			Case: compare.Case{Name: fmt.Sprintf("quorum/distinct/%d", clients), Goals: []compare.Goal{faster("redsync", 1.5)},
				Note: fmt.Sprintf("five Redis without persistence; TTL 2 s; one client of each, %d goroutines with a name each", clients)},
			open: func(tb testing.TB) []compare.Side { return open(tb, contest{clients: clients, pairs: true}) },
		})
	}
	return cases
}

// quorum returns ours, after a first acquire: new servers do not vote until they are as old as
// a TTL.
func quorum(tb testing.TB, ttl time.Duration, servers []*testbed.Server) acquire {
	var clients []rueidis.Client
	for _, s := range servers {
		clients = append(clients, dialRedis(tb, s))
	}
	q, err := redis.OpenQuorum(tb.Context(), clients, &redis.QuorumOptions{TTL: ttl})
	ok(tb, err)
	lock := advisory(tb, q)
	_, held, err := lock(tb.Context(), "first")
	ok(tb, err)
	ok(tb, held.Release(context.Background()))
	return lock
}
