package prepared

import (
	"context"
	"runtime"
	"sync"
	"weak"
)

// Slots bound the branches that occupy connections of a pool. The other connections finish prepared
// branches: branches that wait for rows of prepared ones could otherwise occupy all.
type Slots chan struct{}

var pools sync.Map // Slots by the weak pointer to their pool

// SlotsOf returns the slots of a pool, which all of its participants share; nil if size returns 0,
// no bound. One connection and an eighth of all are left to others.
func SlotsOf[P any](pool *P, size func(*P) int) Slots {
	if pool == nil {
		return nil
	}
	connections := size(pool)
	if connections <= 0 {
		return nil
	}
	key := weak.Make(pool)
	slots, known := pools.LoadOrStore(key, make(Slots, max(1, connections-1-connections/8)))
	if !known {
		runtime.AddCleanup(pool, func(key weak.Pointer[P]) { pools.Delete(key) }, key)
	}
	return slots.(Slots)
}

// Take waits for a slot. free gives it back, once.
func (s Slots) Take(ctx context.Context) (free func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s <- struct{}{}:
		return sync.OnceFunc(func() { <-s }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
