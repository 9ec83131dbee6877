package semaphore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// queue is the wait of the contender that holds the door while too few slots are free.
type queue struct {
	s       *Semaphore
	n       names
	wanted  int
	permits Permits          // so far
	size    int              // of the semaphore, as it was seen last
	looked  bool             // at all slots
	expires boottime.Instant // the next holder, unless it is renewed; 0 if none does
}

// await blocks until it has acquired the wanted number of slots.
func (s *Semaphore) await(ctx context.Context, n names, wanted int) (Permits, error) {
	q := &queue{s: s, n: n, wanted: wanted}
	err := s.locks.Await(ctx, s.view, n.slots, q.look)
	if err == nil {
		return q.permits, nil
	}
	_ = q.permits.Release(ctx) // Hooks.ReleaseFailed reports errors
	return nil, err
}

// look tries slots that may be free. It lists the holders only if it has no better information.
// If an error is worth a retry, it asks for another look.
func (q *queue) look(ctx context.Context, changed []string) (done bool, expires time.Duration, err error) {
	if q.permits, err = q.permits.lost(ctx); err != nil {
		return false, 0, err
	}
	if changed == nil || q.size == 0 || slices.Contains(changed, q.n.sizeLock()) {
		if q.size, err = q.s.room(ctx, q.n, q.wanted); err != nil {
			return false, 0, err
		}
		if slices.Contains(changed, q.n.sizeLock()) {
			changed = nil
		}
	}
	slots := q.s.anyOrder(q.size)
	if changed != nil {
		slots = q.ownSlots(changed)
	}
	if changed != nil || !q.looked {
		done, err = q.try(ctx, slots)
	}
	if err == nil && !done && changed == nil {
		q.looked = true
		if slots, err = q.free(ctx); err == nil {
			done, err = q.try(ctx, slots)
		}
	}
	return done, q.untilExpiry(), err
}

// try reports whether enough slots are acquired.
func (q *queue) try(ctx context.Context, slots []int) (done bool, err error) {
	err = q.s.try(ctx, q.n, slots, q.wanted, &q.permits)
	return len(q.permits) >= q.wanted, err
}

// ownSlots returns the slots among locks that this semaphore uses.
func (q *queue) ownSlots(locks []string) (slots []int) {
	for _, lock := range locks {
		if i, ok := q.n.index(lock); ok && i < q.size {
			slots = append(slots, i)
		}
	}
	return slots
}

// free lists all slots. If all slots of this semaphore and slots beyond them are taken, another
// process uses a larger number, or the number was larger before.
func (q *queue) free(ctx context.Context) (slots []int, err error) {
	states, _, err := q.s.view.Locks(ctx, q.n.slots, 2*MaxPermits)
	if err != nil {
		return nil, err
	}
	taken, beyond := make(map[int]bool), -1
	for _, state := range states {
		i, ok := q.n.index(state.Name)
		if !ok || state.Holder == nil {
			continue
		}
		taken[i] = true
		beyond = max(beyond, i)
	}
	q.expires = 0
	if next := driver.NextExpiry(states); next > 0 {
		q.expires = boottime.Now().Add(next)
	}
	for i := range q.size {
		if !taken[i] {
			slots = append(slots, i)
		}
	}
	if len(slots) == 0 && beyond >= q.size && q.s.values == nil {
		return nil, q.s.driver.New("count permits of", q.n.name, interlock.Definite,
			fmt.Errorf("%w: slot %d is in use, but this semaphore has %d slots", ErrSize, beyond, q.size))
	}
	return slots, nil
}

// untilExpiry returns the time until the next holder expires; 0 if none does.
func (q *queue) untilExpiry() time.Duration {
	if q.expires == 0 {
		return 0
	}
	return max(1, q.expires.Sub(boottime.Now()))
}
