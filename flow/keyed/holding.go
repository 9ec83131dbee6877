package keyed

import (
	"context"
	"slices"
	"sync/atomic"
)

// holding is the stripes that one call of Lock has.
type holding struct {
	stripes  []int
	released atomic.Bool
}

// is reports whether they are still held.
func (h *holding) is() bool { return !h.released.Load() }

// take locks the stripes in their order, or none.
func (h *holding) take(ctx context.Context, s *Stripes) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, stripe := range h.stripes {
		select {
		case s.locks[stripe] <- struct{}{}:
		case <-ctx.Done():
			give(s, h.stripes[:i])
			return ctx.Err()
		}
	}
	return nil
}

// release unlocks, the first time it is called.
func (h *holding) release(s *Stripes) {
	if h.released.CompareAndSwap(false, true) {
		give(s, h.stripes)
	}
}

func give(s *Stripes, stripes []int) {
	for _, stripe := range slices.Backward(stripes) {
		<-s.locks[stripe]
	}
}
