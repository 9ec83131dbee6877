package memory_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// branches is a barrier with counters.
type branches struct {
	single[driver.Barrier[memory.Business]]
	mu     sync.Mutex
	counts map[string]int64
}

func (b *branches) business(w drivertest.BarrierWork) memory.Business {
	return func(result []byte, known bool) ([]byte, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if w.Limit != 0 && b.counts[w.Key] >= w.Limit {
			return nil, memory.Refusal("full")
		}
		if w.Known {
			w.Add, _ = strconv.ParseInt(string(result), 10, 64)
		}
		if !w.Known || known {
			b.counts[w.Key] += w.Add
		}
		if w.Fail {
			return nil, errors.New("broken")
		}
		return []byte(w.Result), nil
	}
}

func TestBarrier(t *testing.T) {
	of := func(b drivertest.BarrierBackend[memory.Business]) *branches { return b.(*branches) }
	drivertest.RunBarrier(t, drivertest.BarrierHarness[memory.Business]{
		StoreHarness: drivertest.StoreHarness[driver.Barrier[memory.Business]]{
			Bubble: virtual.Test,
			Start: func(*testing.T, bool) drivertest.BarrierBackend[memory.Business] {
				return &branches{single: single[driver.Barrier[memory.Business]]{memory.NewBarrier()}, counts: map[string]int64{}}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		},
		Business: func(b drivertest.BarrierBackend[memory.Business], w drivertest.BarrierWork) memory.Business {
			return of(b).business(w)
		},
		Count: func(_ *testing.T, b drivertest.BarrierBackend[memory.Business], key string) int64 {
			of(b).mu.Lock()
			defer of(b).mu.Unlock()
			return of(b).counts[key]
		},
	})
}

// TestBarrierPanicIsAFailure: the undo of a first call that panicked runs.
func TestBarrierPanicIsAFailure(t *testing.T) {
	b, hash := memory.NewBarrier(), sha256.Sum256(nil)
	c := driver.BarrierCall{Transaction: "t", Branch: "b", Phase: driver.BarrierFirst, Hash: hash[:], Begun: time.UnixMilli(1)}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		_, _ = b.Call(t.Context(), c, func([]byte, bool) ([]byte, error) { panic("broken") })
	}()
	c.Phase = driver.BarrierUndo
	got, err := b.Call(t.Context(), c, func(_ []byte, known bool) ([]byte, error) {
		if known {
			t.Error("it got a result")
		}
		return nil, nil
	})
	if err != nil || !got.Ran || got.State != driver.BarrierUndone {
		t.Errorf("%+v, %v", got, err)
	}
}

func ExampleBarrier() {
	ctx, barrier, seats := context.Background(), memory.NewBarrier(), 1
	hash := sha256.Sum256([]byte(`{"seats":1}`))
	call := driver.BarrierCall{Transaction: "order/42", Branch: "seats", Phase: driver.BarrierFirst, Hash: hash[:], Begun: time.Now()}
	hold := func([]byte, bool) ([]byte, error) {
		if seats == 0 {
			return nil, memory.Refusal("no seat")
		}
		seats--
		return []byte("seat 7"), nil
	}
	for range 2 {
		answer, err := barrier.Call(ctx, call, hold)
		fmt.Println(answer.Outcome, string(answer.Result), answer.Ran, err)
	}
	call.Transaction = "order/43"
	answer, err := barrier.Call(ctx, call, hold)
	fmt.Println(answer.Outcome, string(answer.Result), answer.Ran, err)
	// Output:
	// done seat 7 true <nil>
	// done seat 7 false <nil>
	// no no seat true <nil>
}
