package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestValues(t *testing.T) {
	t.Parallel()
	drivertest.RunValues(t, drivertest.ValuesHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ValuesBackend {
			return paths.At(serverOr(t, exclusive), func(t *testing.T, addr string) (driver.Values, error) { return NewValues(dial(t, addr), "suite/"), nil })
		},
	})
}

// seen collects the reports of a watch.
type seen struct {
	mu  sync.Mutex
	all []string
}

func follow(t *testing.T, v *Values) *seen {
	t.Helper()
	s := &seen{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		for {
			err := v.Watch(ctx, "n", func(value driver.Value) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.all = append(s.all, string(value.Data))
			})
			if interlock.Kind(err) != interlock.Retryable {
				done <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := testbed.Receive(t, done, "the end of a watch"); !errors.Is(err, context.Canceled) {
			t.Errorf("a watch ended with %v", err)
		}
	})
	return s
}

func (s *seen) await(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	testbed.Eventually(t, fmt.Sprintf("seen are %q", want), patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		got = slices.Clone(s.all)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Fatalf("seen are %q, want %q", got, want)
	}
}

func mustPutValue(t *testing.T, v *Values, token interlock.Token, data string) {
	t.Helper()
	testbed.OK(t, v.Put(bounded(t), "n", driver.Value{Data: []byte(data), Token: token}))
}

func TestPutCostsOneRequest(t *testing.T) {
	t.Parallel()
	var count counter
	v := NewValues(dial(t, serverFor(t).Addr(), count.on), "")
	before := count.n.Load()
	for i := range int64(10) {
		mustPutValue(t, v, tok(t, 1+i, 0), "x")
	}
	if got := count.n.Load() - before; got != 10 {
		t.Fatalf("%d requests for 10 values", got)
	}
}

// TestWatchOfAValueThatWasCompactedAway: it starts again and sees the last value.
func TestWatchOfAValueThatWasCompactedAway(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	proxy := testbed.NewProxy(t, server.Addr())
	operator := dial(t, server.Addr())
	beside := NewValues(operator, "p/")
	mustPutValue(t, beside, tok(t, 1, 0), "one")
	s := follow(t, NewValues(dial(t, proxy.Addr()), "p/"))
	s.await(t, "one")
	proxy.Cut()
	for i := range int64(5) {
		mustPutValue(t, beside, tok(t, 2+i, 0), fmt.Sprint("missed ", i))
	}
	rev := mustPut(t, operator, "another", "")
	_, err := operator.Compact(bounded(t), rev)
	testbed.OK(t, err)
	proxy.Heal()
	s.await(t, "one", "missed 4")
	mustPutValue(t, beside, tok(t, 7, 0), "two")
	s.await(t, "one", "missed 4", "two")
}

// TestSilentWatchOfAValue: its value is read again after a while.
func TestSilentWatchOfAValue(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	deaf := deafen(client)
	v := NewValues(client, "")
	v.again = 300 * time.Millisecond
	mustPutValue(t, v, tok(t, 1, 0), "one")
	deaf.deaf.Store(true)
	s := follow(t, v)
	s.await(t, "one")
	mustPutValue(t, v, tok(t, 2, 0), "two")
	s.await(t, "one", "two")
}

// TestWipedStoreOfValues: no lower value is reported, and later writes are.
func TestWipedStoreOfValues(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t)
	var reads atomic.Int64 // that are answered
	v := NewValues(dial(t, server.Addr(), func(config *clientv3.Config) {
		intercept(config, func(_ context.Context, method string, call func() error) error {
			err := call()
			if method == pb.KV_Range_FullMethodName && err == nil {
				reads.Add(1)
			}
			return err
		})
	}), "")
	v.again = 300 * time.Millisecond
	for i := range 9 { // so that revisions fall
		mustPutValue(t, v, tok(t, 5, 0), fmt.Sprint(i))
	}
	s := follow(t, v)
	s.await(t, "8")
	server.Wipe()
	testbed.Eventually(t, "a lower value is stored", patience, func() bool {
		return v.Put(bounded(t), "n", driver.Value{Data: []byte("lower"), Token: tok(t, 4, 0)}) == nil
	})
	before := reads.Load()
	testbed.Eventually(t, "the lower value is read, without a report", patience, func() bool { return reads.Load() >= before+2 })
	mustPutValue(t, v, tok(t, 5, 0), "again")
	s.await(t, "8", "again")
}

// TestKeyThatIsNoValue is refused, neither replaced nor reported.
func TestKeyThatIsNoValue(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	v := NewValues(client, "")
	for _, text := range []string{"", "x", "0000000000000000000 {}\nx", "9999999999999999999 {}\nx", "000000000000000x000 {}\nx", "0000000000000004096 {}"} {
		mustPut(t, client, "interlock.value:n", text)
		_, err := v.Get(bounded(t), "n")
		if interlock.Kind(err) != interlock.Definite || err == nil {
			t.Fatalf("get of %q: %v", text, err)
		}
		if err := v.Watch(bounded(t), "n", func(v driver.Value) { t.Errorf("reported %+v", v) }); err == nil || interlock.Kind(err) != interlock.Definite {
			t.Fatalf("watch of %q: %v", text, err)
		}
	}
}
