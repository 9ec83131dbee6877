package semaphore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// world is the held permits and a guarded store with a mark for each slot.
type world struct {
	*bench

	mu      sync.Mutex
	permits map[*semaphore.Permit]bool
	last    map[int]interlock.Token // by slot
	full    int                     // how often all were held
	refused int                     // late writes
}

const size = 3

// out records a held permit, and counts the valid ones.
func (w *world) out(p *semaphore.Permit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.permits[p] = true
	valid, slots := 0, map[int]bool{}
	for p := range w.permits {
		if p.Valid() {
			valid++
			slots[p.Slot()] = true
		}
	}
	if valid > size || len(slots) != valid {
		w.Errorf("%d valid permits in %d slots of %d", valid, len(slots), size)
	}
	if valid == size {
		w.full++
	}
	if p.Claim().Token() <= w.last[p.Slot()] {
		w.Errorf("token %d of slot %d after %d", p.Claim().Token(), p.Slot(), w.last[p.Slot()])
	}
	w.last[p.Slot()] = p.Claim().Token()
}

// work writes at its beginning and its end. A stopped holder's last write is
// refused if the slot has another holder.
func (w *world) work(p *semaphore.Permit, took time.Duration) {
	enter := func() error { // like the last request before a pause, it does not check the claim
		return w.space.Fence().Enter(w.Context(), driver.Raise{Resource: p.Resource(), Token: p.Claim().Token()})
	}
	if err := enter(); err != nil {
		w.Error(err)
	}
	time.Sleep(took)
	err := enter()
	w.mu.Lock()
	defer w.mu.Unlock()
	newer := w.last[p.Slot()] > p.Claim().Token()
	if errors.Is(err, interlock.ErrStaleToken) {
		w.refused++
	}
	if err != nil && !newer || p.Valid() && newer {
		w.Errorf("valid %v, overtaken %v: %v", p.Valid(), newer, err)
	}
}

func (w *world) turn(random *rand.Rand) {
	d := w.space.Open(&memory.Options{TTL: ttl})
	s, err := semaphore.New(d, size, nil)
	testbed.OK(w, err)
	defer func() {
		_ = s.Close(context.Background())
		_ = d.Close(context.Background())
	}()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	if random.IntN(5) == 0 { // a short wait
		time.AfterFunc(time.Duration(random.Int64N(int64(ttl))), cancel)
	}
	p, err := s.Acquire(ctx, name)
	if err != nil {
		if ctx.Err() == nil {
			w.Error(err)
		}
		return
	}
	w.out(p)
	took := time.Duration(random.Int64N(int64(ttl)))
	if random.IntN(4) == 0 { // it is paused, and continues after its permit has ended
		_ = d.Close(w.Context())
		took *= 3
	}
	w.work(p, took)
	_ = p.Release(w.Context())
}

func TestNeverMoreThanThePermits(t *testing.T) {
	for seed := range uint64(15) {
		inBubble(t, func(b *bench) {
			w := &world{bench: b,
				permits: map[*semaphore.Permit]bool{}, last: map[int]interlock.Token{}}
			var all sync.WaitGroup
			for process := range uint64(8) {
				random := rand.New(rand.NewPCG(seed, process))
				all.Go(func() {
					for range 8 {
						w.turn(random)
					}
				})
			}
			all.Wait()
			if w.full < 10 {
				b.Errorf("all permits were out %d times only", w.full)
			}
			time.Sleep(2 * ttl) // until the permits of stopped holders expire
			b.mustBeEmpty()
		})
	}
}
