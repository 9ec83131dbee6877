package redis

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func markKey(resource string) string { return fenceKey("mark", resource) }

func TestFence(t *testing.T) {
	t.Parallel()
	drivertest.RunFence(t, drivertest.FenceHarness{Start: func(t *testing.T, _ bool) drivertest.FenceBackend {
		server := testbed.Redis(t)
		return &store{paths.New[driver.Fence](server), dial(t, server.Addr())}
	}})
}

// store is a server with guarded data and its own path for each fence.
type store struct {
	*paths.Server[driver.Fence]
	operator rueidis.Client // bypasses the faults of the paths
}

func (s *store) Open(t *testing.T) (driver.Fence, error) {
	return s.Lead(t, func(path *testbed.Proxy) (driver.Fence, error) {
		return NewFence(dial(t, path.Addr())), nil
	})
}

func (s *store) Beside(*testing.T) (driver.Fence, error) { return NewFence(s.operator), nil }

func (s *store) Faults() drivertest.Faults { return s.Server }

func (s *store) Get(t *testing.T, key string) ([]byte, bool) {
	t.Helper()
	value, err := raw(t, s.operator, "GET", key).AsBytes()
	if err != nil && !rueidis.IsRedisNil(err) {
		t.Fatal(err)
	}
	return value, err == nil
}

type rebasing struct{ From, To, Reason, By, At string }

func (s *store) Rebases(t *testing.T, resource string) (all []drivertest.Rebased) {
	t.Helper()
	var records []*rebasing
	testbed.OK(t, rueidis.DecodeSliceOfJSON(raw(t, s.operator, "LRANGE", fenceKey("rebase", resource), "0", "-1"), &records))
	for _, r := range records {
		if at, err := strconv.ParseInt(r.At, 10, 64); err != nil || time.Since(time.UnixMilli(at)).Abs() > time.Minute {
			t.Errorf("recorded at %q, %v", r.At, err)
		}
		all = append(all, drivertest.Rebased{From: parsed(t, r.From), To: parsed(t, r.To), Reason: r.Reason, By: r.By})
	}
	return all
}

// parsed returns a token from its recorded form, 0 for none.
func parsed(t *testing.T, s string) interlock.Token {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	testbed.OK(t, err)
	return interlock.Token(n)
}

// TestFenceWritesStrings over any former value, and without a time to live;
// reserved keys it does not write.
func TestFenceWritesStrings(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	f := NewFence(client)
	raise := driver.Raise{Resource: "r", Token: tokenOf(t, 5, 0)}
	for _, key := range []string{"list", "doomed"} {
		mustDo(t, client, "RPUSH", key, "a", "list")
	}
	mustDo(t, client, "SET", "short", "x", "EX", "100")
	err := f.Enter(t.Context(), raise, driver.Write{Key: "list", Value: []byte("a string")},
		driver.Write{Key: "doomed", Delete: true}, driver.Write{Key: "short", Value: []byte("x")})
	testbed.OK(t, err)
	list, _ := raw(t, client, "GET", "list").ToString()
	doomed, _ := raw(t, client, "EXISTS", "doomed").AsInt64()
	for _, key := range []string{"short", markKey("r")} {
		if ttl, err := raw(t, client, "TTL", key).AsInt64(); err != nil || ttl != -1 {
			t.Errorf("key %q has %d seconds to live, %v", key, ttl, err)
		}
	}
	if list != "a string" || doomed != 0 {
		t.Fatalf("list %q, doomed %d", list, doomed)
	}
	for _, key := range []string{"interlock:{0}:counter", markKey("another")} {
		if err := f.Enter(t.Context(), raise, driver.Write{Key: key}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("writing the key %q: %v", key, err)
		}
	}
}

func TestFenceEvalRunsAfterTheCheck(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	high := tokenOf(t, interlock.CounterAt(time.Now()), 1)
	body := "return redis.call('INCRBY', KEYS[1], ARGV[1]) -- a comment"
	add := func(token interlock.Token) (rueidis.RedisMessage, error) {
		return f.Eval(t.Context(), driver.Raise{Resource: "r", Token: token}, body, []string{"n"}, []string{"5"})
	}
	for want := int64(5); want <= 10; want += 5 {
		m, err := add(high)
		if got, e := m.AsInt64(); err != nil || e != nil || got != want {
			t.Fatalf("%d, %v, %v; want %d", got, err, e, want)
		}
	}
	if _, err := add(high - 1); !errors.Is(err, interlock.ErrStaleToken) {
		t.Fatalf("a stale token: %v", err)
	}
	if n, _ := raw(t, client, "GET", "n").AsInt64(); n != 10 {
		t.Fatalf("a refused body wrote: %d", n)
	}
	m, err := f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, "redis.call('DEL', KEYS[1])", []string{"n"}, nil)
	if err != nil || m.IsArray() {
		t.Fatalf("a body that returns nothing: %v, %v", m, err)
	}
	_, err = f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, "this is no Lua", nil, nil)
	if interlock.Kind(err) != interlock.Definite || err == nil {
		t.Fatalf("a body that does not compile: %v", err)
	}
	half := "redis.call('SET', KEYS[1], 'half'); redis.call('INCR', KEYS[1])"
	_, err = f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, half, []string{"n"}, nil)
	if interlock.Kind(err) != interlock.Uncertain || err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Fatalf("a body that fails half way: %v", err)
	}
}

// TestDamagedMark is reported, and a rebase, which repairs it, succeeds.
func TestDamagedMark(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	f := NewFence(client)
	mustDo(t, client, "HSET", markKey("r"), "counter", "5", "sub", "0", "token", "five")
	if _, err := f.Mark(t.Context(), "r"); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a damaged mark is shown: %v", err)
	}
	if _, err := f.Rebase(t.Context(), "r", tokenOf(t, 7, 0), "damaged", "op"); !errors.Is(err, interlock.ErrUncertain) {
		t.Fatalf("rebase of a damaged mark: %v", err)
	}
	if was, err := f.Rebase(t.Context(), "r", tokenOf(t, 6, 0), "again", "op"); err != nil || was.Token != tokenOf(t, 7, 0) {
		t.Fatalf("rebase again: %+v, %v", was, err)
	}
}
