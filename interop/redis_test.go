package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// ourRedis is one of our locks, with or without tokens.
type ourRedis interface {
	acquire(ctx context.Context, r driver.Request) (driver.Lease, error)
	Release(ctx context.Context, name, owner string) error
	Close(ctx context.Context) error
}

type fencedRedis struct{ *redis.Driver }

func (d fencedRedis) acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	g, err := d.Acquire(ctx, r)
	return g.Lease, err
}

type advisoryRedis struct{ driver.Advisory }

func (d advisoryRedis) acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	return d.Acquire(ctx, r)
}

type plainRedis struct {
	advisoryRedis
	driver.Inspector
}

// redisBed is the environment of a test of two kinds of clients.
type redisBed struct {
	open    func(t *testing.T, ttl time.Duration) ourRedis
	foreign func(t *testing.T) foreignRedis
	// holder returns the holder on the first server; empty if there is none.
	holder func(t *testing.T, name string) string
	// shown is the prefix of a foreign owner in our Inspector; empty: it shows none.
	shown string
}

func dialRedis(t *testing.T, addr string) rueidis.Client {
	t.Helper()
	client, err := redis.Dial("redis://" + addr)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	return client
}

func closeRedis(t *testing.T, d ourRedis) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func holderOn(t *testing.T, addr string) func(t *testing.T, name string) string {
	client := dialRedis(t, addr)
	return func(t *testing.T, name string) string {
		t.Helper()
		holder, err := client.Do(t.Context(), client.B().Get().Key(name).Build()).ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			t.Fatal(err)
		}
		return holder
	}
}

// ourModes are our two locks on one server.
var ourModes = map[string]func(context.Context, rueidis.Client, *redis.Options) (ourRedis, error){
	"queue": func(ctx context.Context, c rueidis.Client, o *redis.Options) (ourRedis, error) {
		d, err := redis.Open(ctx, c, o)
		return fencedRedis{d}, err
	},
	"plain": func(ctx context.Context, c rueidis.Client, o *redis.Options) (ourRedis, error) {
		p, err := redis.OpenPlain(ctx, c, o)
		return plainRedis{advisoryRedis{p}, p}, err
	},
}

func TestRedisClients(t *testing.T) {
	t.Parallel()
	for mode, open := range ourModes {
		for who, foreign := range foreignClients {
			t.Run(mode+" and "+who, func(t *testing.T) {
				t.Parallel()
				server := testbed.Redis(t)
				testTogether(t, redisBed{
					open: func(t *testing.T, ttl time.Duration) ourRedis {
						d, err := open(t.Context(), dialRedis(t, server.Addr()), &redis.Options{TTL: ttl})
						testbed.OK(t, err)
						t.Cleanup(func() { closeRedis(t, d) })
						return d
					},
					foreign: func(t *testing.T) foreignRedis { return foreign(t, server.Addr()) },
					holder:  holderOn(t, server.Addr()),
					shown:   who,
				})
			})
		}
	}
}

func TestRedisQuorumAndRedsync(t *testing.T) {
	t.Parallel()
	var addrs []string
	for range 5 {
		addrs = append(addrs, testbed.Redis(t).Addr())
	}
	testTogether(t, redisBed{
		open: func(t *testing.T, ttl time.Duration) ourRedis {
			var clients []rueidis.Client
			for _, addr := range addrs {
				clients = append(clients, dialRedis(t, addr))
			}
			// The servers are new and have lost no data.
			q, err := redis.OpenQuorum(t.Context(), clients, &redis.QuorumOptions{TTL: ttl, NodeTimeout: ttl / 3, RestartDelay: -1})
			testbed.OK(t, err)
			t.Cleanup(func() { closeRedis(t, advisoryRedis{q}) })
			return advisoryRedis{q}
		},
		foreign: func(t *testing.T) foreignRedis { return newRedsync(t, addrs...) },
		holder:  holderOn(t, addrs[0]),
	})
}

const longRedis = 20 * time.Second

func testTogether(t *testing.T, b redisBed) {
	t.Run("they hold", func(t *testing.T) { testTheyHold(t, b) })
	t.Run("we hold", func(t *testing.T) { testWeHold(t, b) })
	t.Run("they crash", func(t *testing.T) { testTheyCrash(t, b) })
	t.Run("we crash", func(t *testing.T) { testWeCrash(t, b) })
	t.Run("one at a time", func(t *testing.T) { testOneAtATime(t, b) })
}

// mustAcquire waits until we hold it.
func mustAcquire(t *testing.T, d ourRedis, name, owner string) driver.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease, err := d.acquire(ctx, driver.Request{Name: name, Owner: owner})
	testbed.OK(t, err)
	return lease
}

func testTheyHold(t *testing.T, b redisBed) {
	d, them := b.open(t, longRedis), b.foreign(t)
	release, err := them.try("theirs", longRedis)
	testbed.OK(t, err)
	held := b.holder(t, "theirs")
	if b.shown != "" {
		state, err := d.(driver.Inspector).Lock(t.Context(), "theirs")
		if err != nil || state.Holder == nil || !state.Holder.Foreign || !strings.HasPrefix(state.Holder.Owner, b.shown+" ") ||
			state.Holder.Expires <= longRedis/2 {
			t.Errorf("a lock of %s is shown as %+v, %v", b.shown, state.Holder, err)
		}
	}
	if _, err := d.acquire(t.Context(), driver.Request{Name: "theirs", Owner: "us/1", NoWait: true}); !errors.Is(err, interlock.ErrHeld) {
		t.Fatalf("while they hold it our acquire returned %v", err)
	}
	testbed.OK(t, d.Release(t.Context(), "theirs", "us/1"))
	if now := b.holder(t, "theirs"); now != held || held == "" {
		t.Fatalf("our release of nothing made %q of %q", now, held)
	}
	if ours, err := release(); !ours || err != nil {
		t.Fatalf("their release: %v, %v", ours, err)
	}
	mustAcquire(t, d, "theirs", "us/2")
	testbed.OK(t, d.Release(t.Context(), "theirs", "us/2"))
}

func testWeHold(t *testing.T, b redisBed) {
	d, them := b.open(t, longRedis), b.foreign(t)
	mustAcquire(t, d, "ours", "us/3")
	if _, err := them.try("ours", longRedis); !errors.Is(err, errTaken) {
		t.Fatalf("while we hold it theirs returned %v", err)
	}
	if holder := b.holder(t, "ours"); !strings.HasSuffix(holder, "us/3") {
		t.Fatalf("their attempt left %q", holder)
	}
	testbed.OK(t, d.Release(t.Context(), "ours", "us/3"))
	release := awaitForeign(t, them, "ours", longRedis)
	if ours, err := release(); !ours || err != nil {
		t.Fatalf("their release: %v, %v", ours, err)
	}
}

// testTheyCrash checks that their lock expires, and that their late release is not of ours.
func testTheyCrash(t *testing.T, b redisBed) {
	d, them := b.open(t, longRedis), b.foreign(t)
	const ttl = time.Second
	began := time.Now()
	release, err := them.try("left", ttl)
	testbed.OK(t, err)
	lease := mustAcquire(t, d, "left", "us/4")
	if took := time.Since(began); took < ttl*8/10 {
		t.Errorf("granted after %v, they have it for %v", took, ttl)
	}
	if ours, _ := release(); ours {
		t.Error("they released what they had lost")
	}
	if holder := b.holder(t, "left"); !strings.HasSuffix(holder, "us/4") || lease.Remaining() <= 0 {
		t.Errorf("their late release left %q", holder)
	}
	testbed.OK(t, d.Release(t.Context(), "left", "us/4"))
}

// testWeCrash is the reverse of testTheyCrash. A driver that is closed leaves its locks to expire.
func testWeCrash(t *testing.T, b redisBed) {
	const ttl = 3 * time.Second
	d, them := b.open(t, ttl), b.foreign(t)
	until := time.Now().Add(mustAcquire(t, d, "left", "us/5").Remaining())
	closeRedis(t, d)
	release := awaitForeign(t, them, "left", longRedis)
	if left := time.Until(until); left > 0 {
		t.Errorf("they got it while it is ours for %v", left)
	}
	held := b.holder(t, "left")
	testbed.OK(t, b.open(t, ttl).Release(t.Context(), "left", "us/5"))
	if now := b.holder(t, "left"); now != held {
		t.Errorf("our late release made %q of %q", now, held)
	}
	if ours, err := release(); !ours || err != nil {
		t.Fatalf("their release: %v, %v", ours, err)
	}
}

// testOneAtATime: two of each kind contend, at most one holds, and both kinds get a turn.
func testOneAtATime(t *testing.T, b redisBed) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var inside, ours, theirs atomic.Int32
	work := func(count *atomic.Int32) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d are inside", n)
		}
		time.Sleep(time.Millisecond) // hold the lock for a while
		count.Add(1)
		inside.Add(-1)
	}
	enough := func() bool { return ctx.Err() != nil || ours.Load() >= 5 && theirs.Load() >= 5 }
	var running sync.WaitGroup
	for i := range 2 {
		d, them := b.open(t, longRedis), b.foreign(t)
		running.Go(func() {
			for n := 0; !enough(); n++ {
				owner := fmt.Sprintf("us/%d/%d", i, n)
				_, err := d.acquire(ctx, driver.Request{Name: "busy", Owner: owner})
				if err == nil {
					work(&ours)
				}
				if e := d.Release(context.Background(), "busy", owner); e != nil || err != nil && ctx.Err() == nil {
					t.Errorf("%v, %v", err, e)
					return
				}
				time.Sleep(2 * time.Millisecond) // let others in
			}
		})
		running.Go(func() {
			for !enough() {
				release, err := them.try("busy", longRedis)
				if errors.Is(err, errTaken) {
					time.Sleep(2 * time.Millisecond)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				work(&theirs)
				if mine, err := release(); !mine || err != nil {
					t.Errorf("their release: %v, %v", mine, err)
				}
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		t.Errorf("in %v we were inside %d times, they %d times", patience, ours.Load(), theirs.Load())
	}
}
