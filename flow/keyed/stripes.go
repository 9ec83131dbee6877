package keyed

import (
	"context"
	"errors"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/interlock-dev/interlock"
)

// Stripes are a fixed number of locks for any number of keys: the hash of a key selects its lock.
// Keys that share a lock wait for each other; with n stripes and k locked keys, the probability
// for another key is about k/n. Callers are served first come first served. It is safe for
// concurrent use.
//
// The hash is seeded by the process, so an attacker cannot choose keys that collide.
type Stripes struct {
	seed  maphash.Seed
	locks []chan struct{} // capacity 1, full while locked: senders queue in order
}

// NewStripes returns n locks, rounded up to a power of two, at most 1<<20. 0 means 1024, which use
// about 100 KB.
func NewStripes(n int) (*Stripes, error) {
	if n == 0 {
		n = 1024
	}
	if n < 0 || n > 1<<20 {
		return nil, bug("make stripes", "", errors.New("the number must be 0 to 1<<20"))
	}
	s := &Stripes{seed: maphash.MakeSeed(), locks: make([]chan struct{}, 1<<bits.Len(uint(n-1)))}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s, nil
}

// Do runs fn while key is locked. Its errors are those of [Stripes.Lock] and of fn. It unlocks even
// if fn panics.
func (s *Stripes) Do(ctx context.Context, key string, fn func(ctx context.Context) error) error {
	return s.DoAll(ctx, []string{key}, fn)
}

// DoAll runs fn while all keys are locked. Callers do not deadlock, whatever the order of their
// keys.
func (s *Stripes) DoAll(ctx context.Context, keys []string, fn func(ctx context.Context) error) error {
	inside, unlock, err := s.Lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer unlock()
	return fn(inside)
}

// Lock waits until all keys are locked, or ctx ends. Use inside for calls under the lock. unlock
// unlocks them; calling it again does nothing.
//
// A Lock with the context inside is rejected with [interlock.ErrReentered] whatever its keys are:
// another key may share a held lock, or its holder may wait for one. Lock all keys in one call. If
// ctx ends first, nothing is locked and the error is Definite.
func (s *Stripes) Lock(ctx context.Context, keys ...string) (inside context.Context, unlock func(), err error) {
	const op = "lock stripes"
	for _, key := range keys {
		if err := checkKey(op, key); err != nil {
			return nil, nil, err
		}
	}
	if held, ok := ctx.Value(s).(*atomic.Bool); ok && held.Load() {
		return nil, nil, bug(op, first(keys), interlock.ErrReentered)
	}
	stripes := s.of(keys)
	if !s.take(ctx, stripes) {
		return nil, nil, ended(op, first(keys), ctx)
	}
	held := new(atomic.Bool)
	held.Store(true)
	return context.WithValue(ctx, s, held), func() {
		if held.CompareAndSwap(true, false) {
			s.release(stripes)
		}
	}, nil
}

// take locks stripes in order, or none if ctx ends.
func (s *Stripes) take(ctx context.Context, stripes []int) bool {
	if ctx.Err() != nil {
		return false
	}
	for i, stripe := range stripes {
		select {
		case s.locks[stripe] <- struct{}{}:
		case <-ctx.Done():
			s.release(stripes[:i])
			return false
		}
	}
	return true
}

func (s *Stripes) release(stripes []int) {
	for _, stripe := range slices.Backward(stripes) {
		<-s.locks[stripe]
	}
}

// of returns the stripes of keys, sorted and without duplicates.
func (s *Stripes) of(keys []string) []int {
	found := make([]int, 0, len(keys))
	for _, key := range keys {
		found = append(found, int(maphash.String(s.seed, key)&uint64(len(s.locks)-1)))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func first(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}
