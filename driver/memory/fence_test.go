package memory_test

import (
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestFence(t *testing.T) {
	drivertest.RunFence(t, drivertest.FenceHarness{
		Bubble: virtual.Test,
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
