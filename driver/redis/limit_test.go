package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	start := suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Limiter { return NewLimiter(client, prefix) })
	drivertest.RunLimiter(t, drivertest.LimiterHarness{Start: func(t *testing.T, exclusive bool) drivertest.LimiterBackend {
		return limiterBackend{start(t, exclusive).(*suiteBackend[driver.Limiter])}
	}})
}

// limiterBackend can damage stored limits.
type limiterBackend struct{ *suiteBackend[driver.Limiter] }

func (b limiterBackend) Damage(t *testing.T, key, text string) {
	mustDo(t, b.at.beside(t), "SET", fenceKey("limit", b.at.prefix+key), text)
}

// clusterLimits stores limits on a cluster shared with other tests.
type clusterLimits struct {
	client rueidis.Client
	prefix string
}

func (c clusterLimits) Open(*testing.T) (driver.Limiter, error) {
	return NewLimiter(c.client, c.prefix), nil
}

func (c clusterLimits) Beside(t *testing.T) (driver.Limiter, error) { return c.Open(t) }

func (c clusterLimits) Faults() drivertest.Faults { return nil }

func (c clusterLimits) Damage(t *testing.T, key, text string) {
	mustDo(t, c.client, "SET", fenceKey("limit", c.prefix+key), text)
}

// The suite without its faults, which are those of one server. A call of two slots is refused
// alone, and takes nothing.
func limitsOnCluster(t *testing.T, client rueidis.Client) {
	t.Run("Limiter", func(t *testing.T) {
		drivertest.RunLimiter(t, drivertest.LimiterHarness{
			Start:   func(t *testing.T, _ bool) drivertest.LimiterBackend { return clusterLimits{client, t.Name() + "/"} },
			Without: drivertest.Servers | drivertest.LostReplies,
		})
	})
	charge := func(key string) driver.Charge {
		return driver.Charge{Key: key, Rate: driver.Rate{Count: 1, Period: time.Hour}, Cost: 1}
	}
	answers := NewLimiter(client, "").Take(t.Context(), []driver.LimitCall{{charge("a"), charge("b")}, {charge("a")}, {charge("b")}, {charge("c{t}"), charge("d{t}")}})
	if err := answers[0].Err; interlock.Kind(err) != interlock.Definite || !strings.Contains(fmt.Sprint(err), "slot") {
		t.Errorf("a call of two slots: %+v", answers[0])
	}
	for i, a := range answers[1:] {
		if !a.Allowed() {
			t.Errorf("call %d beside it: %+v", i+1, a)
		}
	}
}

// TestLimitScript runs the script with the test's clock, and expects the results of driver.Decide.
func TestLimitScript(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	const clock = "local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])\n"
	if !strings.Contains(lua("limit")(), clock) {
		t.Fatal("the script reads the clock in another way")
	}
	fixed := newScript(literal(strings.Replace(lua("limit")(), clock, "local now = tonumber(table.remove(ARGV))\n", 1)))
	const clockOfOne = "local now = clock[1] * 1000000 + clock[2]\n"
	if !strings.Contains(lua("limit_one")(), clockOfOne) {
		t.Fatal("the script of one call reads the clock in another way")
	}
	fixedOne, ones := newScript(literal(strings.Replace(lua("limit_one")(), clockOfOne, "local now = tonumber(table.remove(ARGV))\n", 1))), 0
	limiter, random := NewLimiter(client, ""), rand.New(rand.NewPCG(3, 4))
	for run := range 60 {
		rates := []driver.Rate{limitRate(random), limitRate(random)}
		keys, states := []string{fmt.Sprint("a", run), fmt.Sprint("b", run)}, make([]driver.LimitState, 2)
		now := time.Now().UnixMicro() - 1e9
		for range 60 {
			last, period := now, rates[0].Period.Microseconds()
			now += random.Int64N(2*period/(1+random.Int64N(20)) + 1)
			if random.IntN(4) == 0 {
				now = last + period - random.Int64N(2) // the last admission has ended, or ends in a microsecond
			}
			if random.IntN(20) == 0 {
				now -= random.Int64N(3e6) // the clock is set back
			}
			if random.IntN(20) == 0 {
				rates[1] = limitRate(random)
			}
			call := driver.LimitCall{}
			for i := range 1 + random.IntN(2) {
				call = append(call, driver.Charge{Key: keys[i], Rate: rates[i], Cost: min(random.Int64N(rates[i].Count+2)-1, rates[i].Capacity())})
			}
			if len(call) == 1 && call[0].Cost > 0 {
				call[0].Least = random.Int64N(call[0].Cost) + 1
			}
			want := driver.Decide(now, call, states)
			args := []string{"1", fmt.Sprint(len(call))}
			for _, c := range call {
				args = appendCharge(args, c)
			}
			if isShort(call) && random.IntN(2) == 0 {
				one := append(argsOfOne(call[0].Numbers()), fmt.Sprint(now))
				level, err := fixedOne.runOne(context.Background(), client, batch{keys: keys[:1], args: one}).AsInt64()
				testbed.OK(t, err)
				if level >= 0 {
					if got := call[0].Bucket(level); fmt.Sprint(got) != fmt.Sprint(want.Decisions[0]) {
						t.Fatalf("%+v at %d: alone got %+v, want %+v; states %v", call, now, got, want, states)
					}
					ones++
					continue
				}
			}
			m, err := fixed.runOne(context.Background(), client, batch{keys: keys[:len(call)], args: append(args, fmt.Sprint(now))}).ToMessage()
			testbed.OK(t, err)
			got := make([]driver.LimitAnswer, 1)
			if err := limiter.read(&limitBatch{batch: batch{keys: keys[:len(call)]}, calls: []int{0}}, m, []driver.LimitCall{call}, got); err != nil || fmt.Sprint(got[0]) != fmt.Sprint(want) {
				t.Fatalf("%+v at %d: got %+v, %v, want %+v; states %v", call, now, got[0], err, want, states)
			}
		}
	}
	if ones < 100 {
		t.Errorf("%d calls were decided alone", ones)
	}
}

func limitRate(random *rand.Rand) driver.Rate {
	r := driver.Rate{Count: 1 + random.Int64N(50), Period: time.Duration(1+random.Int64N(1e6)) * 10 * time.Microsecond, Algorithm: driver.Algorithm(random.IntN(4))}
	if r.Algorithm == driver.GCRA {
		r.Burst = random.Int64N(80)
	}
	return r
}

// TestLimitExpires: a limit is one key, which expires when nothing of it counts any more.
func TestLimitExpires(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	l := NewLimiter(client, "")
	for _, a := range []driver.Algorithm{driver.GCRA, driver.FixedWindow, driver.SlidingCounter, driver.SlidingLog} {
		c := driver.Charge{Key: fmt.Sprint(a), Rate: driver.Rate{Count: 1, Period: time.Minute, Algorithm: a}, Cost: 1}
		x := l.Take(t.Context(), []driver.LimitCall{{c}})[0]
		if !x.Allowed() {
			t.Fatalf("%+v", x)
		}
		ms, err := raw(t, client, "PTTL", fenceKey("limit", c.Key)).AsInt64()
		if left, reset := time.Duration(ms)*time.Millisecond, x.Decisions[0].ResetAfter; err != nil || left < reset-time.Second || left > reset+2*time.Second {
			t.Errorf("%v lives for %v, counts for %v: %v", a, left, reset, err)
		}
	}
}

// TestLimitOtherType: a key of another type fails its own call, and is not changed.
func TestLimitOtherType(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	mustDo(t, client, "RPUSH", fenceKey("limit", "list"), "x")
	charge := func(key string) driver.Charge {
		return driver.Charge{Key: key, Rate: driver.Rate{Count: 1, Period: time.Hour}, Cost: 1}
	}
	l := NewLimiter(client, "")
	a := l.Take(t.Context(), []driver.LimitCall{{charge("a")}, {charge("b"), charge("list")}, {charge("b")}, {charge("list")}})
	a = append(a, l.Take(t.Context(), []driver.LimitCall{{charge("list")}})...)
	if !a[0].Allowed() || !a[2].Allowed() {
		t.Errorf("%+v", a)
	}
	for _, i := range []int{1, 3, 4} {
		if err := a[i].Err; interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), fenceKey("limit", "list")+" holds a list") {
			t.Error(i, err)
		}
	}
	if n, err := raw(t, client, "LLEN", fenceKey("limit", "list")).AsInt64(); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestLimitGroups: calls with equal numbers send them once, and each is decided separately, in
// order.
func TestLimitGroups(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	rate := func(n int64) driver.Rate { return driver.Rate{Count: n, Period: time.Hour} }
	var calls []driver.LimitCall
	for _, c := range []struct {
		key string
		n   int64
	}{{"a", 3}, {"a", 3}, {"b", 3}, {"a", 3}, {"c", 1}, {"c", 1}, {"b", 3}, {"b", 3}} {
		calls = append(calls, driver.LimitCall{{Key: c.key, Rate: rate(c.n), Cost: 1}})
	}
	calls[5] = driver.LimitCall{{Key: "c", Rate: rate(9), Cost: 1}, {Key: "d", Rate: rate(9), Cost: 1}}
	l := NewLimiter(client, "")
	if batches := l.batches(calls, make([]driver.LimitAnswer, len(calls))); len(batches) != 1 || len(batches[0].args) != 3*10+18 {
		t.Errorf("%d batches, the first has %d numbers", len(batches), len(batches[0].args))
	}
	for _, i := range []int{0, 2} { // some limits exist before, and some do not
		if a := l.Take(t.Context(), calls[i:i+1])[0]; !a.Allowed() {
			t.Fatalf("%+v", a)
		}
	}
	got := ""
	for _, a := range l.Take(t.Context(), calls) {
		got += fmt.Sprint(a.Decisions[0].Remaining, a.Allowed(), " ")
	}
	if want := "1 true 0 true 1 true 0 false 0 true 7 true 0 true 0 false "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestLimitCost: in one script, one command reads existing limits and one writes each.
func TestLimitCost(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	var calls64 []driver.LimitCall
	for i := range driver.MaxCharges {
		calls64 = append(calls64, driver.LimitCall{{Key: fmt.Sprint(i), Rate: driver.Rate{Count: 10, Period: time.Hour}, Cost: 1}})
	}
	l := NewLimiter(client, "")
	take := func() {
		for _, a := range l.Take(t.Context(), calls64) {
			if !a.Allowed() {
				t.Fatalf("%+v", a)
			}
		}
	}
	take()
	before := calls(t, client)
	take()
	if n := since(t, client, before); n["evalsha"] != 1 || n["mget"] != 1 || n["get"] != 0 || n["set"] != driver.MaxCharges || n["time"] != 1 {
		t.Errorf("%v", n)
	}
}

// TestLimitFailover: a failover to a replica admits again no more than the replica had not
// received; with replicas=1 in the URL that is nothing.
func TestLimitFailover(t *testing.T) {
	t.Parallel()
	for _, confirms := range []bool{false, true} {
		t.Run(fmt.Sprint("confirms ", confirms), func(t *testing.T) {
			t.Parallel()
			master := testbed.Redis(t)
			replica := testbed.Replica(t, master)
			setting := map[bool]string{true: "?replicas=1"}[confirms]
			rate := driver.Rate{Count: 10, Period: 24 * time.Hour, Burst: 10}
			call := func(l *Limiter, cost int64) driver.LimitAnswer {
				return l.Take(t.Context(), []driver.LimitCall{{{Key: "k", Rate: rate, Cost: cost}}})[0]
			}
			l := NewLimiter(dial(t, master.Addr()+setting), "")
			if a := call(l, 3); !a.Allowed() {
				t.Fatalf("%+v", a)
			}
			copied := dial(t, replica.Addr())
			testbed.Eventually(t, "the replica has the limit", bound, func() bool {
				keys, err := raw(t, copied, "KEYS", "*:limit:k").AsStrSlice()
				return err == nil && len(keys) == 1
			})
			replica.Pause()
			late := call(l, 4)
			if late.Allowed() == confirms || confirms && interlock.Kind(late.Err) != interlock.Uncertain {
				t.Errorf("without the replica: %+v", late)
			}
			master.Kill()
			replica.Resume()
			next := dial(t, replica.Addr())
			mustDo(t, next, "REPLICAOF", "NO", "ONE")
			a := call(NewLimiter(next, ""), 0)
			if a.Err != nil || a.Decisions[0].Remaining > 7 || a.Decisions[0].Remaining < 3 {
				t.Errorf("after the failover: %+v", a)
			}
		})
	}
}

// TestLimitAllocations: what one call costs the process, including the client.
func TestLimitAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector empties pools, which changes the count")
	}
	l := NewLimiter(dial(t, testbed.Redis(t).Addr()), "")
	calls := []driver.LimitCall{{{Key: "k", Rate: driver.Rate{Count: 1_000_000, Period: time.Second}, Cost: 1}}}
	n := testing.AllocsPerRun(200, func() {
		if a := l.Take(t.Context(), calls)[0]; !a.Allowed() {
			t.Fatalf("%+v", a)
		}
	})
	t.Logf("%v allocations", n)
	if n > 6 {
		t.Errorf("%v allocations for a call, at most 6 are allowed", n)
	}
}
