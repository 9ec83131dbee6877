package memory_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestFence(t *testing.T) {
	drivertest.RunFence(t, drivertest.FenceHarness{
		Bubble: inBubble,
		Start: func(*testing.T, bool) drivertest.FenceBackend {
			space := memory.NewSpace()
			return store{single[driver.Fence]{space.Fence()}, space}
		},
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// store is the fence of a space.
type store struct {
	single[driver.Fence]
	space *memory.Space
}

func (s store) Get(_ *testing.T, key string) ([]byte, bool) { return s.space.Fence().Get(key) }

func (s store) Rebases(_ *testing.T, resource string) (all []drivertest.Rebased) {
	for _, r := range s.space.Fence().Rebases(resource) {
		all = append(all, drivertest.Rebased{From: r.From, To: r.To, Reason: r.Reason, By: r.By})
	}
	return all
}

// TestFenceKeepsTime: virtual time shows, to the microsecond, when a token stops
// being implausible, and the times of marks and rebases.
func TestFenceKeepsTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := memory.NewSpace().Fence()
		limit := interlock.CounterAt(time.Now().Add(interlock.MaxAhead))
		early, err := interlock.NewToken(limit+1, 0)
		testbed.OK(t, err)
		raise := driver.Raise{Resource: "r", Token: early}
		if err := f.Enter(t.Context(), raise); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Fatalf("one microsecond too early: %v", err)
		}
		time.Sleep(time.Microsecond)
		testbed.OK(t, f.Enter(t.Context(), raise))
		if m, err := f.Mark(t.Context(), "r"); err != nil || !m.Raised.Equal(time.Now()) {
			t.Fatalf("%+v, %v", m, err)
		}
		time.Sleep(time.Hour)
		_, err = f.Rebase(t.Context(), "r", 0, "why", "me")
		testbed.OK(t, err)
		if all := f.Rebases("r"); len(all) != 1 || !all[0].At.Equal(time.Now()) {
			t.Fatalf("%+v", all)
		}
	})
}

// TestFenceIsOneForTheSpace, and callers cannot change its values.
func TestFenceIsOneForTheSpace(t *testing.T) {
	space := memory.NewSpace()
	token, err := interlock.NewToken(1, 0)
	testbed.OK(t, err)
	testbed.OK(t, space.Fence().Enter(t.Context(), driver.Raise{Resource: "r", Token: token}, driver.Write{Key: "k", Value: []byte("v")}))
	value, _ := space.Fence().Get("k")
	value[0] = 'x'
	if value, ok := space.Fence().Get("k"); !ok || string(value) != "v" {
		t.Fatalf("%q, %v", value, ok)
	}
	if _, ok := memory.NewSpace().Fence().Get("k"); ok {
		t.Fatal("two spaces share a store")
	}
}
