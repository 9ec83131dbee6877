package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const limitClients = 256

// Rates of limits that refuse nothing during a measurement, and of the limit that the
// checker checks.
var (
	ample  = driver.Rate{Count: 1_000_000, Period: time.Second}
	scarce = driver.Rate{Count: 100, Period: time.Second, Burst: 10}
)

// allow takes a unit of a limit.
type allow func(ctx context.Context, key string, r driver.Rate) (bool, error)

func limitCases(tb testing.TB) []benchmark {
	server, database := lazily(tb, testbed.Redis), lazily(tb, startPostgres)
	const note = "one Redis without persistence; 256 goroutines; one call in 64 is to a limit of 100/s that all share, which the checker holds to its bound; "
	return []benchmark{
		{
			Case:  compare.Case{Name: "limit/redis/distinct/256", Note: note + "a key each", Goals: []compare.Goal{faster("redis_rate", 3), faster("throttled", 3)}},
			smoke: true,
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{decisions("interlock", false, shared(tb, server())), decisions("redis_rate", false, redisRate(tb, server())), decisions("throttled", false, throttle(tb, server()))}
			},
		},
		{
			Case: compare.Case{Name: "limit/redis/hot/256", Note: note + "one key. Each decided: calls of two units, which are not merged, share requests. Each alone: a request for each call, without package limit",
				Goals: []compare.Goal{faster("redis_rate", 10), {Metric: compare.Rate, Side: "interlock, each decided", Against: []string{"redis_rate"}, Want: 3},
					{Metric: compare.Rate, Side: "interlock, each alone", Against: []string{"redis_rate"}, Want: 3}}},
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{decisions("interlock", true, shared(tb, server())), decisions("interlock, each decided", true, decided(tb, server())),
					decisions("interlock, each alone", true, alone(tb, server())), decisions("redis_rate", true, redisRate(tb, server()))}
			},
		},
		{
			Case: compare.Case{Name: "limit/redis/bucket/256", Note: note + "one key", Goals: []compare.Goal{faster("bucket under a lock", 0)}},
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{decisions("interlock, each alone", true, alone(tb, server())), decisions("bucket under a lock", true, newBucket(tb, server()).allow)}
			},
		},
		{
			Case: compare.Case{Name: "limit/leased/256", Note: "units of one key of one Redis, taken in advance; 256 goroutines; the checker holds all that is admitted to the bound",
				Goals: []compare.Goal{{Metric: compare.Rate, Want: 5_000_000}}},
			open: func(tb testing.TB) []compare.Side {
				return []compare.Side{leased(tb, server(), "interlock", driver.Rate{Count: 100_000_000, Period: time.Second}),
					leased(tb, server(), "interlock, most are refused", driver.Rate{Count: 1000, Period: time.Second})}
			},
		},
		{
			Case: compare.Case{Name: "limit/postgres/hot/256", Note: "one Postgres that syncs to disk; 256 goroutines on one key; a pool of 32 connections; the checker as with Redis",
				Goals: []compare.Goal{{Metric: compare.Rate, Want: 5000}, faster("one row committed", 0)}},
			open: func(tb testing.TB) []compare.Side {
				commit := postgresCommit(tb, poolOf(tb, database(), connections))
				return []compare.Side{decisions("interlock", true, inTable(tb, database())),
					compare.Clients("one row committed", limitClients, func(ctx context.Context, _ int) error { return commit(ctx) }, nil)}
			},
		},
	}
}

// admissions are the admitted calls of one limit, each between two times.
type admissions struct {
	refused atomic.Bool // a call was

	mu  sync.Mutex
	all []admission
}

type admission struct{ sent, answered time.Time }

func (a *admissions) add(sent, answered time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, admission{sent, answered})
}

// check compares the admissions with the bound: between any two times, at most the burst plus
// the units that drain meanwhile are admitted.
func (a *admissions) check(r driver.Rate) []string {
	slices.SortFunc(a.all, func(x, y admission) int { return x.answered.Compare(y.answered) })
	for _, first := range a.all {
		n := int64(0)
		for _, x := range a.all {
			if x.sent.Before(first.sent) {
				continue
			}
			n++
			length := x.answered.Sub(first.sent)
			if most := r.Capacity() + int64(length.Seconds()*float64(r.Count)/r.Period.Seconds()); n > most {
				return []string{fmt.Sprintf("%d were admitted in %v, at most %d are", n, length, most)}
			}
		}
	}
	if len(a.all) == 0 && a.refused.Load() {
		return []string{"nothing was admitted"}
	}
	return nil
}

// decisions has each client take units of its own key, or all of one.
func decisions(name string, hot bool, take allow) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		run, checked, count := fresh.Add(1), &admissions{}, make([]int, limitClients)
		keys := make([]string, limitClients)
		for i := range keys {
			keys[i] = fmt.Sprintf("limit/%d/%d", run, i)
			if hot {
				keys[i] = keys[0]
			}
		}
		probe := fmt.Sprintf("limit/%d/checked", run)
		s, err := compare.Drive(ctx, limitClients, window, func(ctx context.Context, client int) error {
			began, key, rate := time.Now(), keys[client], ample
			count[client]++
			isProbe := (count[client]+client)%64 == 0
			if isProbe {
				key, rate = probe, scarce
			}
			allowed, err := take(ctx, key, rate)
			switch {
			case err != nil:
			case isProbe && allowed:
				checked.add(began, time.Now())
			case isProbe:
				checked.refused.Store(true)
			case !allowed:
				err = fmt.Errorf("%s was refused", key)
			}
			return err
		})
		s.Violations = checked.check(scarce)
		return s, err
	}}
}

func allowBy(tb testing.TB, store driver.Limiter) (*limit.Limits, allow) {
	limits, err := limit.New(store, nil)
	ok(tb, err)
	closeAfter(tb, limits.Close)
	return limits, func(ctx context.Context, key string, r driver.Rate) (bool, error) {
		d, err := limits.Allow(ctx, key, r)
		return d.Allowed, err
	}
}

// shared sends calls in batches.
func shared(tb testing.TB, server *testbed.Server) allow {
	_, take := allowBy(tb, redis.NewLimiter(dialRedis(tb, server), ""))
	return take
}

// decided takes two units at twice the rate. Such calls share requests, but not decisions.
func decided(tb testing.TB, server *testbed.Server) allow {
	limits, _ := allowBy(tb, redis.NewLimiter(dialRedis(tb, server), ""))
	return func(ctx context.Context, key string, r driver.Rate) (bool, error) {
		r.Count, r.Burst = 2*r.Count, 2*r.Burst
		d, err := limits.Take(ctx, driver.Charge{Key: key, Rate: r, Cost: 2})
		return d.Allowed, err
	}
}

// alone sends each call separately.
func alone(tb testing.TB, server *testbed.Server) allow {
	store := redis.NewLimiter(dialRedis(tb, server), "")
	return func(ctx context.Context, key string, r driver.Rate) (bool, error) {
		a := store.Take(ctx, []driver.LimitCall{{{Key: key, Rate: r, Cost: 1}}})[0]
		return a.Allowed(), a.Err
	}
}

func inTable(tb testing.TB, server *testbed.Server) allow {
	db := postgres.Pool(poolOf(tb, server, connections))
	table := limit.Table{Name: fmt.Sprint("limit", fresh.Add(1))}
	ok(tb, driver.Create(tb.Context(), db, table))
	_, take := allowBy(tb, limit.FromTable(db, table))
	return take
}

func redisRate(tb testing.TB, server *testbed.Server) allow {
	limiter := redis_rate.NewLimiter(goRedis(tb, server))
	return func(ctx context.Context, key string, r driver.Rate) (bool, error) {
		d, err := limiter.Allow(ctx, key, redis_rate.Limit{Rate: int(r.Count), Burst: int(r.Capacity()), Period: r.Period})
		return err == nil && d.Allowed > 0, err
	}
}

// throttle creates a limiter for each rate.
func throttle(tb testing.TB, server *testbed.Server) allow {
	store, err := goredisstore.NewCtx(goRedis(tb, server), "throttled/")
	ok(tb, err)
	limiters := map[driver.Rate]*throttled.GCRARateLimiterCtx{}
	for _, r := range []driver.Rate{ample, scarce} {
		limiters[r], err = throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerDuration(int(r.Count), r.Period), MaxBurst: int(r.Capacity()) - 1})
		ok(tb, err)
		limiters[r].SetMaxCASAttemptsLimit(1000) // calls of the checked limit compete
	}
	return func(ctx context.Context, key string, r driver.Rate) (bool, error) {
		limited, _, err := limiters[r].RateLimitCtx(ctx, key, 1)
		return !limited, err
	}
}

// leaseCalls is the number of calls in one measured operation.
const leaseCalls = 1000

// leased has clients take units that one lease has acquired in advance.
func leased(tb testing.TB, server *testbed.Server, name string, r driver.Rate) compare.Side {
	limits, _ := allowBy(tb, redis.NewLimiter(dialRedis(tb, server), ""))
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		l, err := limits.Lease(fmt.Sprint("lease/", fresh.Add(1)), r)
		if err != nil {
			return compare.Sample{}, err
		}
		admitted, began := make([]int64, limitClients), time.Now()
		s, err := compare.Drive(ctx, limitClients, window, func(ctx context.Context, client int) error {
			for range leaseCalls {
				allowed, err := l.Allow(ctx)
				if err != nil {
					return err
				}
				if allowed {
					admitted[client]++
				}
			}
			return nil
		})
		if err != nil {
			return s, err
		}
		s.Ops, s.Total = s.Ops*leaseCalls, s.Total*leaseCalls
		for i := range s.Waits {
			s.Waits[i] /= leaseCalls
		}
		for cost := range s.Values {
			s.Values[cost] /= leaseCalls
		}
		sum := int64(0)
		for _, n := range admitted {
			sum += n
		}
		length := time.Since(began)
		if most := r.Capacity() + int64(length.Seconds()*float64(r.Count)/r.Period.Seconds()); sum > most || sum == 0 {
			s.Violations = append(s.Violations, fmt.Sprintf("%d were admitted in %v, at most %d are", sum, length, most))
		}
		return s, l.Close(ctx)
	}}
}
