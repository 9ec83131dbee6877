package redis

import (
	"context"
	"crypto/sha256"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestBarrier(t *testing.T) {
	t.Parallel()
	drivertest.RunBarrier(t, drivertest.BarrierHarness[Body]{
		StoreHarness: drivertest.StoreHarness[driver.Barrier[Body]]{
			Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Barrier[Body] { return NewBarrier(client, "{shop}") }),
		},
		Business: func(_ drivertest.BarrierBackend[Body], w drivertest.BarrierWork) Body { return counting(w) },
		Count: func(t *testing.T, b drivertest.BarrierBackend[Body], key string) int64 {
			n, err := raw(t, b.(*suiteBackend[driver.Barrier[Body]]).at.beside(t), "GET", "{shop}:"+key).AsInt64()
			if err != nil && !rueidis.IsRedisNil(err) {
				t.Error(err)
			}
			return n
		},
	})
}

// counting returns a business of the suite.
func counting(w drivertest.BarrierWork) Body {
	known := ""
	if w.Known {
		known = "known"
	}
	fail := ""
	if w.Fail {
		fail = "fail"
	}
	return Body{Text: `
		local has, limit = tonumber(redis.call('GET', KEYS[1]) or 0), tonumber(ARGV[1])
		if limit ~= 0 and has >= limit then return refuse('full') end
		local add = tonumber(ARGV[2])
		if ARGV[3] == 'known' then add = tonumber(RESULT or 0) end
		redis.call('INCRBY', KEYS[1], add)
		if ARGV[4] == 'fail' then return redis.call('LPUSH', KEYS[1], 'broken') end
		return ARGV[5]`,
		Keys: []string{"{shop}:" + w.Key},
		Args: []string{strconv.FormatInt(w.Limit, 10), strconv.FormatInt(w.Add, 10), known, fail, w.Result}}
}

// barrierCall returns a call of a branch with this step.
func barrierCall(p driver.BarrierPhase, step string) driver.BarrierCall {
	hash := sha256.Sum256(nil)
	return driver.BarrierCall{Transaction: "t", Branch: "b", Step: step, Phase: p, Hash: hash[:], Begun: time.UnixMilli(1_700_000_000_000)}
}

// TestBarrierCost: one request, which reads and writes only the marker and the mark.
func TestBarrierCost(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	b := NewBarrier(client, "{shop}")
	body := Body{Text: "return redis.call('INCR', KEYS[1])", Keys: []string{"n{shop}"}}
	round := func(step string) {
		t.Helper()
		for _, p := range []driver.BarrierPhase{driver.BarrierFirst, driver.BarrierFirst, driver.BarrierUndo, driver.BarrierUndo} {
			if got, err := b.Call(t.Context(), barrierCall(p, step), body); err != nil || got.Outcome != driver.BarrierIsDone {
				t.Fatalf("%+v, %v", got, err)
			}
		}
	}
	round("a") // the server loads the script
	before := calls(t, client)
	round("b")
	after := calls(t, client)
	for command, want := range map[string]int{"evalsha": 4, "eval": 0, "get": 4, "hmget": 4, "incr": 2, "zadd": 1, "hset": 3} {
		if n := after[command] - before[command]; n != want {
			t.Errorf("%d times %s for a first, an undo and their repetitions, want %d", n, command, want)
		}
	}
}

// TestBarrierKeysAreOfOneSlot, and none expires; a body with keys in other slots is
// refused before anything is done.
func TestBarrierKeysAreOfOneSlot(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	b := NewBarrier(client, "{shop}")
	body := Body{Text: "redis.call('SET', KEYS[1], 'x')", Keys: []string{"seat:{shop}:7"}}
	for _, key := range []string{"", "seat:7", "seat:{other}:7", "interlock:{0}:counter"} {
		_, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, ""), Body{Text: body.Text, Keys: []string{"seat:{shop}:7", key}})
		if err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("key %q: %v", key, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		unnamed := NewBarrier(client, name)
		_, err := unnamed.Call(t.Context(), barrierCall(driver.BarrierFirst, ""), Body{})
		_, other := unnamed.Forget(t.Context(), time.UnixMilli(1), nil, 1)
		if interlock.Kind(err) != interlock.Bug || interlock.Kind(other) != interlock.Bug || err == nil || other == nil {
			t.Errorf("a barrier named %q: %v, %v", name, err, other)
		}
	}
	if n, err := raw(t, client, "DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Fatalf("%d keys are there, %v", n, err)
	}
	for _, step := range []string{"", "2", "}{"} {
		if got, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, step), body); err != nil || !got.Ran || len(got.Result) > 0 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := b.Forget(t.Context(), time.UnixMilli(1), nil, 1); err != nil {
		t.Fatal(err)
	}
	keys, err := raw(t, client, "KEYS", "*").AsStrSlice()
	if err != nil || len(keys) != 1+3+1+1 {
		t.Fatalf("%q, %v", keys, err)
	}
	for _, key := range keys {
		ttl, err := raw(t, client, "PTTL", key).AsInt64()
		if err != nil || ttl != -1 || slotOf(key) != slotOf("{shop}") {
			t.Errorf("%q has %d ms to live in slot %d, %v", key, ttl, slotOf(key), err)
		}
	}
}

// TestBarriersAreApart: barriers of two names in one slot share nothing.
func TestBarriersAreApart(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	c := barrierCall(driver.BarrierFirst, "")
	for _, name := range []string{"{shop}a", "{shop}", "a{shop}"} {
		b := NewBarrier(client, name)
		if got, err := b.Call(t.Context(), c, Body{}); err != nil || !got.Ran {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
		if n, err := b.Forget(t.Context(), c.Begun.Add(2*driver.BarrierSpread), nil, 10); err != nil || n != 1 {
			t.Errorf("%q: forgot %d, %v", name, n, err)
		}
	}
}

// TestBarrierBodies: results and failures of bodies.
func TestBarrierBodies(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	b := NewBarrier(client, "{shop}")
	for text, want := range map[string]string{
		"":                                     "",
		"return":                               "",
		"return false":                         "",
		"return redis.call('SET', KEYS[1], 1)": "",
		"return 'text'":                        "text",
		"return 9007199254740991":              "9007199254740991",
		"return -1.5":                          "-1.5",
		"return true":                          "true",
		"return {'a', 'b'}":                    `["a","b"]`,
		"return {hold = 'h'}":                  `{"hold":"h"}`,
		"return #KEYS .. #ARGV .. ARGV[2]":     "12y",
		"return tostring(RESULT)":              "nil",
		"return 'x' -- a comment":              "x",
	} {
		for again := range 2 {
			got, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, text), Body{Text: text, Keys: []string{"k{shop}"}, Args: []string{"x", "y"}})
			if err != nil || string(got.Result) != want || got.Ran != (again == 0) {
				t.Errorf("%s: %+v %q, %v", text, got, got.Result, err)
			}
		}
	}
	for text, why := range map[string]string{
		"error('broken')":                           "broken",
		"redis.call('INCR')":                        "Wrong number of args",
		"return redis.error_reply('ERR no')":        "no",
		"return {function() end}":                   "serialise",
		"redis.call('SET', KEYS[1], 1) error({})":   "",
		"local t = nil; return t.x":                 "nil value",
		"return redis.pcall('LPOP', KEYS[1], 'no')": "positive",
	} {
		_, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, text), Body{Text: text, Keys: []string{"k{shop}"}})
		if err == nil || interlock.Kind(err) != interlock.Uncertain || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
		got, err := b.Call(t.Context(), barrierCall(driver.BarrierUndo, text), Body{})
		if err != nil || !got.Ran {
			t.Errorf("the undo of %s: %+v, %v", text, got, err)
		}
	}
	_, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, "bad"), Body{Text: "this is no Lua"})
	if err == nil || interlock.Kind(err) != interlock.Definite {
		t.Errorf("a body that does not compile: %v", err)
	}
	if got, err := b.Call(t.Context(), barrierCall(driver.BarrierFirst, "bad"), Body{Text: "return 'fixed'"}); err != nil || !got.Ran {
		t.Errorf("and then: %+v, %v", got, err)
	}
}

func ExampleBarrier() {
	client, err := Dial("redis://127.0.0.1:6379")
	if err != nil {
		panic(err)
	}
	defer client.Close()
	barrier := NewBarrier(client, "{shop}")

	hash := sha256.Sum256([]byte(`{"seats":2}`)) // of the input
	call := driver.BarrierCall{Transaction: "order/42", Branch: "seats", Phase: driver.BarrierFirst, Hash: hash[:], Begun: time.Now()}
	answer, err := barrier.Call(context.Background(), call, Body{
		Text: `
			if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then return refuse('no seats') end
			redis.call('DECRBY', KEYS[1], ARGV[1])
			return ARGV[1]`,
		Keys: []string{"seats:{shop}"}, Args: []string{"2"},
	})
	switch {
	case err != nil: // unknown: repeat the call
	case answer.Outcome == driver.BarrierSaysNo: // no seats: final
	}
}
