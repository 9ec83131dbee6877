package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// persist repeats what may be repeated, as the portable types do; false means it gave up.
func persist(t testing.TB, what string, try func(context.Context) error) bool {
	for end := time.Now().Add(3 * bound); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Second)
		err := try(ctx)
		cancel()
		kind := interlock.Kind(err)
		switch {
		case err == nil:
			return true
		case kind != interlock.Retryable && kind != interlock.Uncertain || time.Now().After(end):
			t.Errorf("%s: %v: %v", what, kind, err)
			return false
		}
	}
}

// insist is persist, but must succeed.
func insist(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	if !persist(t, what, try) {
		t.FailNow()
	}
}

// A master dies, and its replica takes over, under locks and guards whose writes are
// confirmed: all grants and writes are still there.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	master := testbed.Redis(t)
	replica := testbed.Replica(t, master)
	sentinel := testbed.Sentinel(t, master)
	testbed.SentinelKnows(t, sentinel, 1)
	client := dial(t, sentinel.Addr()+"?master_set=main&replicas=1")
	d := openWith(t, client, &Options{TTL: 20 * time.Second})
	g := d.Guarantees()
	if !g.ExclusionSurvives.Has(interlock.AsyncFailover) || !g.TokensSurvive.Has(interlock.AsyncFailover) || g.Assumes == "" {
		t.Errorf("with all replicas waited for: %+v", g)
	}
	without := openWith(t, With(client, Settings{}), nil)
	if g := without.Guarantees(); g.ExclusionSurvives.Has(interlock.AsyncFailover) || g.TokensSurvive.Has(interlock.AsyncFailover) {
		t.Errorf("without: %+v", g)
	}
	// While a replica is slow to confirm, the outcome is unknown, and repeating is safe.
	owner, grant := newOwner(), driver.Grant{}
	insist(t, "take", func(ctx context.Context) (err error) {
		grant, err = d.Acquire(ctx, driver.Request{Name: "held", Owner: owner})
		return err
	})
	f := NewFence(client)
	raise := driver.Raise{Resource: "r", Token: grant.Token}
	insist(t, "enter", func(ctx context.Context) error {
		return f.Enter(ctx, raise, driver.Write{Key: "data", Value: []byte("x")})
	})
	master.Kill()
	// The new master has no replica, so writes are uncertain while one is required.
	after := With(client, Settings{})
	var survivor *Driver
	insist(t, "open after the failover", func(ctx context.Context) (err error) {
		survivor, err = Open(ctx, after, nil)
		return err
	})
	defer survivor.Close(context.Background())
	_, err := survivor.Acquire(t.Context(), driver.Request{Name: "held", Owner: newOwner(), NoWait: true})
	var held *interlock.HeldError
	if !errors.As(err, &held) || held.Owner != owner {
		t.Errorf("after the failover: %v, want held by %s", err, owner)
	}
	older := raise
	older.Token = tokenOf(t, grant.Token.Counter()-1, 0)
	var stale *interlock.StaleTokenError
	if err := NewFence(after).Enter(t.Context(), older); !errors.As(err, &stale) {
		t.Errorf("a stale write after the failover: %v", err)
	}
	insist(t, "release", func(ctx context.Context) error { return survivor.Release(ctx, "held", owner) })
	insist(t, "acquire", func(ctx context.Context) error {
		again, err := survivor.Acquire(ctx, driver.Request{Name: "held", Owner: "next", NoWait: true})
		if err == nil && again.Token <= grant.Token {
			t.Errorf("token %v after %v", again.Token, grant.Token)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := f.Enter(ctx, driver.Raise{Resource: "r2", Token: grant.Token}); interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("a write that no replica has: %v", err)
	}
	_ = replica
}

// The account at the sentinels differs from that at the servers.
func TestSentinelAccount(t *testing.T) {
	t.Parallel()
	master := testbed.Redis(t, "--requirepass", "data")
	sentinel := testbed.Sentinel(t, master, "sentinel auth-pass main data", "requirepass s3cret", "user watcher on >pw +@all")
	base := "redis://:data@" + sentinel.Addr() + "?master_set=main"
	for account, permitted := range map[string]bool{
		"&sentinel_password=s3cret":                   true,
		"&sentinel_user=watcher&sentinel_password=pw": true,
		"&sentinel_password=wr0ng":                    false,
		"":                                            false,
	} {
		client, err := Dial(base + account)
		if err != nil {
			var native *rueidis.RedisError
			if permitted || !errors.As(err, &native) || interlock.Kind(err) != interlock.Definite || strings.Contains(err.Error(), "wr0ng") {
				t.Errorf("%s: %v: %v", account, interlock.Kind(err), err)
			}
			continue
		}
		t.Cleanup(client.Close)
		if !permitted {
			t.Errorf("%s: permitted", account)
		}
		d, err := Open(t.Context(), client, nil)
		if err != nil {
			t.Errorf("%s: %v", account, err)
			continue
		}
		owner, _ := take(t, d, "a")
		release(t, d, "a", owner)
		d.Close(t.Context())
	}
	if _, err := Dial("redis://" + master.Addr() + "?sentinel_password=s3cret"); interlock.Kind(err) != interlock.Definite ||
		!strings.Contains(err.Error(), "need master_set") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("without sentinels: %v", err)
	}
}

// Without a server a request was not sent, whichever layer notices.
func TestRefusedDialsAreRetryable(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d, f := openOn(t, server.Addr(), nil), NewFence(dial(t, server.Addr()))
	testbed.OK(t, f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, 10, 0)}))
	server.Kill()
	for what, try := range map[string]func() error{
		"lock": func() error {
			_, err := d.Acquire(t.Context(), driver.Request{Name: "a", Owner: newOwner(), NoWait: true})
			return err
		},
		"fence": func() error {
			return f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, 10, 0)})
		},
		"dial":     func() error { _, err := Dial("redis://" + server.Addr()); return err },
		"sentinel": func() error { _, err := Dial("redis://" + server.Addr() + "?master_set=main"); return err },
		"cluster":  func() error { _, err := Dial("redis://" + server.Addr() + "?cluster=true"); return err },
	} {
		testbed.Eventually(t, what+" is refused as Retryable", bound, func() bool {
			err := try()
			return err != nil && interlock.Kind(err) == interlock.Retryable
		})
	}
}
