package lock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// Alarms that are set, moved and removed in any order ring in time, and only once.
func TestAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var a alarms
		want := map[*hold]boottime.Instant{}
		a.ring = func() {
			mu.Lock()
			defer mu.Unlock()
			a.armed = 0
			for h := a.due(boottime.Now()); h != nil; h = a.due(boottime.Now()) {
				if want[h] != boottime.Now() {
					t.Errorf("rang %v late", boottime.Now().Sub(want[h]))
				}
				delete(want, h)
			}
			a.arm()
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
				after := time.Duration(1 + random.IntN(1000))
				a.set(h, after)
				want[h] = boottime.Now().Add(after)
			}
			mu.Unlock()
			time.Sleep(time.Duration(random.IntN(100)))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(want) > 0 || len(a.next) > 0 {
			t.Errorf("%d did not ring, %d are left", len(want), len(a.next))
		}
	})
}
