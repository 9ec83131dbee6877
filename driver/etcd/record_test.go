package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
