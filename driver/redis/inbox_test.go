package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func delivery(id, payload string) driver.Delivery {
	hash := sha256.Sum256([]byte(payload))
	return driver.Delivery{ID: id, Hash: hash[:], Owner: newOwner()}
}

// count returns an effect that returns how often it ran.
func count(keys ...string) Body {
	return Body{Text: "return redis.call('INCRBY', KEYS[1], ARGV[1])", Keys: keys, Args: []string{"1"}}
}

// However often a message is delivered, concurrently or after a lost answer, its
// effect runs once, and every delivery gets its result.
func TestInboxMakesAnEffectOnce(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	path := testbed.NewProxy(t, server.Addr())
	lossy := NewInbox(dial(t, path.Addr()), "billing{shop}", time.Hour)
	good := NewInbox(dial(t, server.Addr()), "billing{shop}", time.Hour)
	// The server must know the script, because NOSCRIPT is an answer, too.
	if _, _, err := lossy.Apply(t.Context(), delivery("warm", ""), count("warm:{shop}")); err != nil {
		t.Fatal(err)
	}
	path.DropReplies()
	lost := delivery("m1", "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_, _, err := lossy.Apply(ctx, lost, count("total:{shop}"))
	cancel()
	if interlock.Kind(err) == interlock.Definite || err == nil {
		t.Fatalf("a lost answer: %v", err)
	}
	testbed.Eventually(t, "the effect of the request whose answer was lost", bound, func() bool {
		total, err := raw(t, operator, "GET", "total:{shop}").ToString()
		return err == nil && total == "1"
	})
	path.Heal()
	if claimed, result, err := good.Apply(t.Context(), lost, count("total:{shop}")); claimed != driver.ClaimedNow || string(result) != "1" || err != nil {
		t.Errorf("the same delivery again: %v, %q, %v", claimed, result, err)
	}
	var now atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		for _, id := range []string{"m1", "m2"} {
			all.Go(func() {
				claimed, result, err := good.Apply(t.Context(), delivery(id, "a"), count("total:{shop}"))
				if err != nil || string(result) != id[1:] || claimed != driver.ClaimedNow && claimed != driver.ClaimedDone {
					t.Errorf("%s: %v, %q, %v", id, claimed, result, err)
				}
				if claimed == driver.ClaimedNow {
					now.Add(1)
				}
			})
		}
	}
	all.Wait()
	if total, err := raw(t, operator, "GET", "total:{shop}").ToString(); total != "2" || err != nil || now.Load() != 1 {
		t.Errorf("two messages had %s effects, %d of them just now, %v", total, now.Load(), err)
	}
	if claimed, _, err := good.Apply(t.Context(), delivery("m1", "b"), count("total:{shop}")); claimed != driver.ClaimedOther || err != nil {
		t.Errorf("another payload: %v, %v", claimed, err)
	}
	for _, key := range []string{"interlock:{0}:counter", "", "total:{other}"} {
		if _, _, err := good.Apply(t.Context(), delivery("m3", ""), count(key)); interlock.Kind(err) != interlock.Bug {
			t.Errorf("the key %q: %v", key, err)
		}
	}
}

// Redis does not undo, so an effect that failed half way does not run again.
func TestInboxOfAnEffectThatFails(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	in := NewInbox(dial(t, server.Addr()), "c", time.Hour)
	total := func() string {
		s, _ := raw(t, operator, "GET", "{c}total").ToString()
		return s
	}
	refusing := Body{Text: "return refuse('closed')"}
	for range 2 {
		if _, _, err := in.Apply(t.Context(), delivery("m", ""), refusing); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "closed") {
			t.Fatalf("an effect that refuses: %v", err)
		}
	}
	half := Body{Text: "redis.call('INCR', KEYS[1]) error('broken')", Keys: []string{"{c}total"}}
	for range 2 {
		_, _, err := in.Apply(t.Context(), delivery("m", ""), half)
		if interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "broken") || total() != "1" {
			t.Fatalf("an effect that fails: %v, total %s", err, total())
		}
	}
	testbed.OK(t, in.Forget(t.Context(), "m"))
	if claimed, result, err := in.Apply(t.Context(), delivery("m", ""), count("{c}total")); claimed != driver.ClaimedNow || string(result) != "2" || err != nil {
		t.Errorf("after Forget: %v, %q, %v", claimed, result, err)
	}
}
