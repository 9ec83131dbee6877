package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestFence(t *testing.T) {
	t.Parallel()
	drivertest.RunFence(t, drivertest.FenceHarness{Start: func(t *testing.T, _ bool) drivertest.FenceBackend {
		server := serverFor(t)
		return &store{writeFaults: writeFaults[driver.Fence]{Server: paths.New[driver.Fence](server)}, operator: dial(t, server.Addr())}
	}})
}

// store is a server with guarded data and its own path for each fence.
type store struct {
	writeFaults[driver.Fence]
	operator *clientv3.Client // bypasses the faults of the paths
}

const fencePrefix = "suite/"

func (s *store) Open(t *testing.T) (driver.Fence, error) {
	return s.Lead(t, func(path *testbed.Proxy) (driver.Fence, error) {
		return NewFence(dial(t, path.Addr(), s.beforeWrites(path)), fencePrefix), nil
	})
}

func (s *store) Beside(*testing.T) (driver.Fence, error) {
	return NewFence(s.operator, fencePrefix), nil
}

func (s *store) Faults() drivertest.Faults { return s }

func (s *store) Get(t *testing.T, key string) ([]byte, bool) {
	t.Helper()
	reply, err := s.operator.Get(bounded(t), key)
	testbed.OK(t, err)
	if len(reply.Kvs) == 0 {
		return nil, false
	}
	return reply.Kvs[0].Value, true
}

// Rebases reads the records of this resource: those of longer names begin with the
// same bytes.
func (s *store) Rebases(t *testing.T, resource string) (all []drivertest.Rebased) {
	t.Helper()
	prefix := fencePrefix + "interlock.rebase:" + escaper.Replace(resource) + ":"
	reply, err := s.operator.Get(bounded(t), prefix, clientv3.WithPrefix())
	testbed.OK(t, err)
	for _, kv := range reply.Kvs {
		if len(kv.Key) != len(prefix)+driver.PaddedLength {
			continue
		}
		var r rebasing
		if err := json.Unmarshal(kv.Value, &r); err != nil || time.Since(r.At).Abs() > time.Minute {
			t.Fatalf("record %s: %v", kv.Value, err)
		}
		all = append(all, drivertest.Rebased{From: r.From, To: r.To, Reason: r.Reason, By: r.By})
	}
	return all
}

func tok(t *testing.T, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	testbed.OK(t, err)
	return token
}

func write(key, value string) driver.Write { return driver.Write{Key: key, Value: []byte(value)} }

// TestFenceLimits: an Enter beyond the limits of a transaction is rejected as a whole, and only
// data can be written.
func TestFenceLimits(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "p/")
	raise := driver.Raise{Resource: "r", Token: tok(t, 10, 0)}
	err := f.Enter(t.Context(), raise, write("twice", "1"), write("twice", "2"))
	if err == nil || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a key written twice: %v", err)
	}
	var many []driver.Write
	for i := range 63 {
		many = append(many, write(fmt.Sprint("many/", i), "x"))
	}
	for range 2 { // the first mark was raised by another branch
		testbed.OK(t, f.Enter(t.Context(), raise, many...))
	}
	raise.Token = tok(t, 11, 0)
	if err := f.Enter(t.Context(), raise, append(many, write("more", "x"))...); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("64 writes: %v", err)
	}
	for _, key := range []string{"p/interlock.fence:another", "p/interlock.rebase:x", "p/interlock.base"} {
		for _, w := range []driver.Write{write(key, "x"), {Key: key, Delete: true}} {
			if err := f.Enter(t.Context(), raise, w); err == nil || interlock.Kind(err) != interlock.Bug {
				t.Errorf("writing the key %q: %v", key, err)
			}
		}
	}
	if m, err := f.Mark(t.Context(), "r"); err != nil || m.Token != tok(t, 10, 0) || len(keys(t, client, "p/")) != 1 {
		t.Fatalf("a refused call left %+v, %v, %q", m, err, keys(t, client, "p/"))
	}
}

// TestFenceGoesByItsClock: etcd has none in transactions.
func TestFenceGoesByItsClock(t *testing.T) {
	t.Parallel()
	f := NewFence(dial(t, serverFor(t).Addr()), "")
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	f.now = func() time.Time { return now }
	limit := interlock.CounterAt(now.Add(interlock.MaxAhead))
	testbed.OK(t, f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, limit, 7)}))
	if m, err := f.Mark(t.Context(), "r"); err != nil || !m.Raised.Equal(now) {
		t.Fatalf("%+v, %v", m, err)
	}
	beyond := driver.Raise{Resource: "r", Token: tok(t, limit+1, 0)}
	if err := f.Enter(t.Context(), beyond); !errors.Is(err, interlock.ErrImplausibleToken) {
		t.Fatal(err)
	}
	if _, err := f.Rebase(t.Context(), "r", beyond.Token, "why", "me"); !errors.Is(err, interlock.ErrImplausibleToken) {
		t.Fatal(err)
	}
}

// TestFenceOneRequestPerEnter, also when it refuses.
func TestFenceOneRequestPerEnter(t *testing.T) {
	t.Parallel()
	var count counter
	f := NewFence(dial(t, serverFor(t).Addr(), count.on), "")
	for i, counterOf := range []int64{4, 5, 3} {
		before := count.n.Load()
		_ = f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, counterOf, 0)}, write("k", "v"))
		if n := count.n.Load() - before; n != 1 {
			t.Errorf("enter %d cost %d requests", i, n)
		}
	}
}

// TestFenceKeepsOutOfLocks: marks are in no lock's line, whatever the names.
func TestFenceKeepsOutOfLocks(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	d := open(t, client, &Options{RawNames: true})
	for _, resource := range []string{"a", "a/b", "interlock.base", ":"} {
		testbed.OK(t, f.Enter(t.Context(), driver.Raise{Resource: resource, Token: tok(t, 5, 0)}))
		_, err := f.Rebase(t.Context(), resource, 0, "why", "me")
		testbed.OK(t, err)
	}
	for _, lock := range []string{"interlock.fence:a", "interlock.fence:", "interlock.rebase:a", "a", "interlock.base", "interlock.fence"} {
		r := ask(lock, "me")
		r.NoWait = true
		mustAcquire(t, d, r)
	}
}

// TestFenceMarkThatIsNone is reported, not overwritten.
func TestFenceMarkThatIsNone(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	mustPut(t, client, "interlock.fence:r", "something else that is longer than digits")
	err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, 5, 0)})
	if interlock.Kind(err) != interlock.Definite {
		t.Fatal(err)
	}
	if _, err := f.Mark(t.Context(), "r"); interlock.Kind(err) != interlock.Definite {
		t.Fatal(err)
	}
}

// TestBypassingWritesAreReported: at the next guarded write of the key, unless the
// resource was entered meanwhile.
func TestBypassingWritesAreReported(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "bypass/")
	token := interlock.Token(0)
	enter := func(writes ...driver.Write) (bypassed []string) {
		t.Helper()
		token += 1 << 20
		err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token, Bypassed: func(key string) { bypassed = append(bypassed, key) }}, writes...)
		testbed.OK(t, err)
		return bypassed
	}
	past := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			_, err := client.Put(t.Context(), key, "past the guard")
			testbed.OK(t, err)
		}
	}
	a, b, gone := driver.Write{Key: "a", Value: []byte("1")}, driver.Write{Key: "b", Value: []byte("1")}, driver.Write{Key: "a", Delete: true}
	for _, step := range []struct {
		past   []string
		writes []driver.Write
		want   string
	}{
		{past: []string{"a"}, writes: []driver.Write{a, b}}, // from before there was a guard
		{writes: []driver.Write{a, b}},
		{past: []string{"b"}, writes: []driver.Write{a, b}, want: "[b]"},
		{past: []string{"a", "b"}, writes: []driver.Write{a, b}, want: "[a b]"},
		{writes: []driver.Write{a, b}},
		{past: []string{"a"}, writes: []driver.Write{gone}, want: "[a]"},
		{writes: []driver.Write{gone}},
		{past: []string{"b"}}, // this enters, and finds the earlier write
		{writes: []driver.Write{b}},
	} {
		past(step.past...)
		if got := enter(step.writes...); fmt.Sprint(got) != cmp.Or(step.want, "[]") {
			t.Errorf("after writes of %v past the guard, %v are reported, want %v", step.past, got, step.want)
		}
	}
}

// reasons returns the reasons of r's rebases, from the records of the fence in
// prefix.
func reasons(t *testing.T, client *clientv3.Client, prefix string) (all []string) {
	t.Helper()
	reply, err := client.Get(bounded(t), prefix+"interlock.rebase:r:", clientv3.WithPrefix())
	testbed.OK(t, err)
	for _, kv := range reply.Kvs {
		var r rebasing
		testbed.OK(t, json.Unmarshal(kv.Value, &r))
		all = append(all, r.Reason)
	}
	return all
}

// TestRebaseOfAMarkThatIsGoneKeepsEarlierRecords: a missing mark looks the same
// each time.
func TestRebaseOfAMarkThatIsGoneKeepsEarlierRecords(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "p/")
	var want []string
	for i := range 3 {
		mustDelete(t, client, f.key("r"))
		want = append(want, fmt.Sprint("reason ", i))
		_, err := f.Rebase(t.Context(), "r", tok(t, 10, 0), want[i], "me")
		testbed.OK(t, err)
	}
	if got := reasons(t, client, "p/"); !slices.Equal(got, want) {
		t.Fatalf("recorded are %q, want %q", got, want)
	}
}

// between runs do once, when a client is about to send its first transaction.
func between(do func(ctx context.Context)) func(*clientv3.Config) {
	var done atomic.Bool
	return func(config *clientv3.Config) {
		intercept(config, func(ctx context.Context, method string, call func() error) error {
			if strings.HasSuffix(method, "/Txn") && done.CompareAndSwap(false, true) {
				do(ctx)
			}
			return call()
		})
	}
}

// TestRebasesThatSawTheSameStoreKeepBothRecords: both find no mark, one sets it, it
// is deleted, and the other continues.
func TestRebasesThatSawTheSameStoreKeepBothRecords(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	operator := dial(t, server.Addr())
	fast := NewFence(operator, "p/")
	slow := NewFence(dial(t, server.Addr(), between(func(ctx context.Context) {
		if _, err := fast.Rebase(ctx, "r", tok(t, 10, 0), "fast", "me"); err != nil {
			t.Errorf("the fast one: %v", err)
		}
		mustDelete(t, operator, fast.key("r"))
	})), "p/")
	_, err := slow.Rebase(t.Context(), "r", tok(t, 11, 0), "slow", "me")
	testbed.OK(t, err)
	if got, want := reasons(t, operator, "p/"), []string{"fast", "slow"}; !slices.Equal(got, want) {
		t.Fatalf("recorded are %q, want %q", got, want)
	}
}

// TestRebaseOfAMarkThatMoved replaces, and records, the new mark.
func TestRebaseOfAMarkThatMoved(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	fast := NewFence(dial(t, server.Addr()), "p/")
	raised := tok(t, 12, 0)
	slow := NewFence(dial(t, server.Addr(), between(func(ctx context.Context) {
		if err := fast.Enter(ctx, driver.Raise{Resource: "r", Token: raised}); err != nil {
			t.Errorf("the fast one: %v", err)
		}
	})), "p/")
	if m, err := slow.Rebase(t.Context(), "r", tok(t, 11, 0), "slow", "me"); err != nil || m.Token != raised {
		t.Fatalf("replaced %+v, %v", m, err)
	}
}
