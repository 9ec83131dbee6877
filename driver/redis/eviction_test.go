package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// guards returns all that use keys without a time to live, and those that use keys
// with one.
func guards(client rueidis.Client) (marks, timed map[string]func(context.Context) error) {
	fence, values, versions := NewFence(client), NewValues(client, ""), NewVersions(client, "")
	stock, barrier, once, requests := NewStock(client, nil), NewBarrier(client, "b"), NewOnce(client), NewIdempotency(client, "")
	token, _ := interlock.NewToken(10, 0)
	n := 0
	next := func() string { n++; return fmt.Sprint("n/", n) }
	marks = map[string]func(context.Context) error{
		"fence":  func(ctx context.Context) error { return fence.Enter(ctx, driver.Raise{Resource: "r", Token: token}) },
		"values": func(ctx context.Context) error { return values.Put(ctx, "v", driver.Value{Token: token}) },
		"versions": func(ctx context.Context) error {
			_, _, err := versions.Apply(ctx, next(), driver.Versioned{Stamp: driver.Stamp{Version: 1}})
			return err
		},
		"stock": func(ctx context.Context) error { _, err := stock.Supply(ctx, "s", 1); return err },
		"barrier": func(ctx context.Context) error {
			_, err := barrier.Call(ctx, driver.BarrierCall{Transaction: next(), Branch: "b", Step: "s",
				Phase: driver.BarrierFirst, Hash: make([]byte, 32), Begun: time.Now()}, Body{})
			return err
		},
	}
	timed = map[string]func(context.Context) error{
		"once": func(ctx context.Context) error {
			_, err := once.Claim(ctx, driver.Delivery{Consumer: "c", ID: next(), Owner: "o", Hash: make([]byte, 32)}, time.Second)
			return err
		},
		"idempotency": func(ctx context.Context) error {
			_, err := requests.Claim(ctx, driver.IdempotencyClaim{ID: driver.IdempotencyID{Operation: "o", Scope: "s", Key: next()},
				Owner: "o", Fingerprint: "f", Lease: time.Second})
			return err
		},
	}
	return marks, timed
}

// An operator changes the policy of a running server.
func TestEvictionThatIsTurnedOnIsNoticed(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	policy := func(p string) {
		mustDo(t, operator, "CONFIG", "SET", "maxmemory-policy", p)
	}
	marks, timed := guards(dial(t, server.Addr()))
	d := openOn(t, server.Addr(), nil)
	timed["lock"] = func(ctx context.Context) error {
		_, err := d.Acquire(ctx, driver.Request{Name: newOwner(), Owner: newOwner(), NoWait: true})
		return err
	}
	timed["locks together"] = func(ctx context.Context) error {
		_, err := d.AcquireAll(ctx, []driver.Request{{Name: newOwner(), Owner: newOwner()}})
		return err
	}
	owner, _ := take(t, d, "held")
	become := func(what string, guards map[string]func(context.Context) error, refused bool) {
		t.Helper()
		for name, call := range guards {
			var err error
			defer func() {
				if t.Failed() {
					t.Logf("%s: %v", name, err)
				}
			}()
			testbed.Eventually(t, fmt.Sprintf("%s %s: refused is %v", what, name, refused), bound, func() bool {
				err = call(t.Context())
				return refused && errors.Is(err, ErrEviction) && interlock.Kind(err) == interlock.Definite || !refused && err == nil
			})
		}
	}
	become("noeviction", marks, false)
	become("noeviction", timed, false)
	policy("volatile-lru")
	become("volatile-lru", timed, true)
	become("volatile-lru", marks, false)
	policy("allkeys-lfu")
	become("allkeys-lfu", marks, true)
	release(t, d, "held", owner) // held locks can be released
	policy("noeviction")
	become("noeviction again", marks, false)
	become("noeviction again", timed, false)
}

// A client that reconnects may reach a server with another configuration.
func TestEvictionIsLookedForAfterAReconnection(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	f := NewFence(dial(t, server.Addr()))
	enter := func() error {
		return f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, 10, 0)})
	}
	d := openOn(t, server.Addr(), nil)
	testbed.OK(t, enter())
	server.Kill()
	if err := enter(); err == nil {
		t.Fatal("the server is dead")
	}
	server.Restart()
	operator := dial(t, server.Addr())
	mustDo(t, operator, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	// No call is permitted after the failure.
	for end := time.Now().Add(bound); ; {
		err := enter()
		if err == nil {
			t.Fatal("accepted by a server that evicts")
		}
		if errors.Is(err, ErrEviction) {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	testbed.Eventually(t, "locks are refused", bound, func() bool {
		_, err := d.Acquire(t.Context(), driver.Request{Name: "a", Owner: newOwner(), NoWait: true})
		return errors.Is(err, ErrEviction)
	})
}

func TestServersThatEvictOrDoNotSayAreRefused(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	for _, policy := range []string{"volatile-ttl", "allkeys-lru"} {
		mustDo(t, operator, "CONFIG", "SET", "maxmemory-policy", policy)
		if _, err := Open(t.Context(), operator, nil); !errors.Is(err, ErrEviction) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s: %v", policy, err)
		}
		if _, err := OpenPlain(t.Context(), operator, nil); !errors.Is(err, ErrEviction) {
			t.Errorf("plain, %s: %v", policy, err)
		}
	}
	for _, command := range [][]string{
		{"CONFIG", "SET", "maxmemory-policy", "noeviction"},
		{"ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info", "-config"},
	} {
		mustDo(t, operator, command...)
	}
	blind := dial(t, "blind:pw@"+server.Addr())
	if _, err := Open(t.Context(), blind, nil); !errors.Is(err, ErrEviction) || !strings.Contains(err.Error(), "?eviction=none") {
		t.Errorf("a user that cannot read the policy: %v", err)
	}
	for what, declared := range map[string]rueidis.Client{
		"With": With(blind, Settings{NoEviction: true}), "URL": dial(t, "blind:pw@"+server.Addr()+"?eviction=none"),
	} {
		d, err := Open(t.Context(), declared, nil)
		if err != nil {
			t.Fatalf("%s: declared: %v", what, err)
		}
		if g := d.Guarantees(); !strings.Contains(g.Assumes, "noeviction") {
			t.Errorf("%s: the guarantees do not say what was declared: %+v", what, g)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := NewFence(declared).Enter(t.Context(), driver.Raise{Resource: "r", Token: tokenOf(t, 10, 0)}); err != nil {
			t.Errorf("%s: fence: %v", what, err)
		}
	}
}
