package lock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// Alarms that are set, moved and removed in any order ring in time, and only once.
func TestAlarms(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var a alarms
		want := map[*hold]boottime.Instant{}
		again := map[*hold]bool{} // to be set once more when it rings
		var rang boottime.Instant
		a.ring = func() {
			mu.Lock()
			defer mu.Unlock()
			now := boottime.Now()
			if now == rang {
				t.Error("the timer fired twice at one instant")
			}
			rang = now
			a.fired(now, func(h *hold) {
				if want[h] != now {
					t.Errorf("rang %v late", now.Sub(want[h]))
				}
				delete(want, h)
				if again[h] { // while others may be due
					delete(again, h)
					a.set(h, time.Second)
					want[h] = now.Add(time.Second)
				}
			})
		}
		holds := make([]hold, 20)
		random := rand.New(rand.NewPCG(1, 2))
		for range 1000 {
			mu.Lock()
			h := &holds[random.IntN(len(holds))]
			if random.IntN(3) == 0 {
				a.remove(h)
				delete(want, h)
			} else {
				after := time.Duration(1 + random.IntN(50))
				a.set(h, after)
				want[h] = boottime.Now().Add(after)
				again[h] = true
			}
			mu.Unlock()
			time.Sleep(time.Duration(random.IntN(100)))
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(want) > 0 || len(a.next) > 0 {
			t.Errorf("%d did not ring, %d are left", len(want), len(a.next))
		}
	})
}
