package redis

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestStock(t *testing.T) {
	t.Parallel()
	drivertest.RunStock(t, drivertest.StockHarness{
		Start: suiteBackends(durable, func(client rueidis.Client, prefix string) driver.Stock {
			return NewStock(client, &StockOptions{Prefix: "shop/"})
		}),
	})
}

func TestStockKeysOfAnItemShareItsSlot(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, prefix := range []string{"", "shop/{x}"} {
		s := NewStock(nil, &StockOptions{Prefix: prefix})
		for _, name := range oddNames {
			for _, key := range s.keys(name) {
				if slotOf(key) != slotOf(prefix+name) {
					t.Errorf("%q is not in the slot of %q", key, prefix+name)
				}
				if other, taken := seen[key]; taken {
					t.Errorf("%q and %q share %q", other, prefix+name, key)
				}
				seen[key] = prefix + name
			}
		}
	}
}

// TestStockForgets: calls of an item remove its old ids with their units, so that
// an item does not grow without bound.
func TestStockForgets(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s, ctx := NewStock(client, &StockOptions{Keep: time.Millisecond}), t.Context()
	must := func(a driver.StockAnswer, err error) {
		t.Helper()
		if err != nil || a.Outcome != driver.StockDone {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	must(s.Supply(ctx, "x", 1000))
	const each = 30
	for i := range each {
		id := fmt.Sprint(i)
		must(s.Hold(ctx, driver.StockHold{Item: "x", Reservation: id, N: 1, TTL: time.Hour}))
		must(s.Settle(ctx, "x", id, driver.StockConfirmed))
		must(s.Hold(ctx, driver.StockHold{Item: "x", Reservation: "held" + id, N: 1, TTL: time.Millisecond}))
		must(s.Adjust(ctx, driver.StockAdjustment{Item: "x", Operation: id, Delta: 1}))
	}
	keys := s.keys("x")
	count := func(command, key string) int64 {
		return number(t, client, command, key)
	}
	testbed.Eventually(t, "what has not expired is all that is left", bound, func() bool {
		must(s.Supply(ctx, "x", 1000))
		return count("HLEN", keys[1]) == each && count("HLEN", keys[3]) == 0 && count("ZCARD", keys[2]) == 0
	})
	if n := count("ZCARD", keys[4]); n != each {
		t.Errorf("%d ids are to be forgotten, want %d", n, each)
	}
	level, err := s.Level(ctx, "x")
	if want := (driver.StockLevel{Supply: 1000, Sold: each}); err != nil || level != want {
		t.Errorf("%+v, %v", level, err)
	}
	if held, err := raw(t, client, "HGET", keys[0], "held").AsInt64(); err != nil || held != 0 {
		t.Errorf("%d units are held without a reservation, %v", held, err)
	}
}

// TestStockOnDamagedKeys: an invalid answer is an error, and no sale.
func TestStockOnDamagedKeys(t *testing.T) {
	t.Parallel()
	client := dial(t, testbed.Redis(t).Addr())
	s := NewStock(client, nil)
	mustDo(t, client, "SET", s.keys("x")[0], "a string")
	_, err := s.Hold(t.Context(), driver.StockHold{Item: "x", Reservation: "r", N: 1, TTL: time.Hour})
	if interlock.Kind(err) != interlock.Definite || err == nil {
		t.Errorf("%v", err)
	}
}
