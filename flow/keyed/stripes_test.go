package keyed_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func stripes(t *testing.T, n int) *keyed.Stripes {
	t.Helper()
	s, err := keyed.NewStripes(n)
	ok(t, err)
	return s
}

// TestStripesExclude: concurrent transfers between accounts, with keys in any order, lose no update and
// do not deadlock.
func TestStripesExclude(t *testing.T) {
	ctx := testbed.Bounded(t)
	for _, n := range []int{1, 2, 64} {
		s := stripes(t, n)
		var balance [8]int
		var all sync.WaitGroup
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 3))
			all.Go(func() {
				for range 500 {
					from, to := r.IntN(len(balance)), r.IntN(len(balance))
					err := s.DoAll(ctx, []string{fmt.Sprint(from), fmt.Sprint(to)}, func(context.Context) error {
						balance[from]--
						balance[to]++
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		sum := 0
		for _, b := range balance {
			sum += b
		}
		if sum != 0 {
			t.Errorf("%d stripes: money was lost: %v", n, balance)
		}
	}
}

// TestStripesAreTakenInOneOrder, whatever the order of the keys: callers do not deadlock.
func TestStripesAreTakenInOneOrder(t *testing.T) {
	for _, keys := range [][2]string{{"a", "b"}, {"b", "a"}} {
		virtual.Test(t, func(t *testing.T) {
			s, ended := stripes(t, 1<<16), make(chan error)
			_, unlock, err := s.Lock(t.Context(), keys[0])
			ok(t, err)
			for _, order := range [][]string{{keys[0], keys[1]}, {keys[1], keys[0]}} {
				go func() { ended <- s.DoAll(t.Context(), order, nothing) }()
				synctest.Wait()
			}
			unlock()
			ok(t, <-ended)
			ok(t, <-ended)
		})
	}
}

// TestStripesReentrance: a Lock inside a Lock is rejected whatever its keys, and works after the unlock.
func TestStripesReentrance(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s, other := stripes(t, 0), stripes(t, 0)
		inside, unlock, err := s.Lock(t.Context(), "a")
		ok(t, err)
		derived, cancel := context.WithCancel(inside)
		defer cancel()
		for _, key := range []string{"a", "b"} {
			_, _, err := s.Lock(derived, key)
			wantKind(t, err, interlock.Bug, interlock.ErrReentered)
		}
		ok(t, other.Do(inside, "a", nothing))
		unlock()
		unlock() // once
		ok(t, s.Do(inside, "a", nothing))
	})
}

// TestStripesWaitForContext: a caller whose context ends holds no lock, and the others continue in order.
func TestStripesWaitForContext(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := stripes(t, 1)
		_, unlock, err := s.Lock(t.Context(), "a")
		ok(t, err)
		var got []int
		for i := range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i == 1 {
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			go func() {
				err := s.Do(ctx, "a", func(context.Context) error { got = append(got, i); return nil })
				if i == 1 {
					wantKind(t, err, interlock.Definite, context.DeadlineExceeded)
				} else if err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		unlock()
		synctest.Wait()
		if fmt.Sprint(got) != "[0 2 3]" {
			t.Error(got)
		}
	})
}

// TestStripesGiveBackWhatTheyTook: if the wait for the second key ends, the first is unlocked.
func TestStripesGiveBackWhatTheyTook(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := stripes(t, 1<<16)                                           // two keys hardly collide
		for held, other := range map[string]string{"a": "b", "b": "a"} { // one of them is taken first
			_, unlock, err := s.Lock(t.Context(), held)
			ok(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, _, err = s.Lock(ctx, "a", "b")
			cancel()
			wantKind(t, err, interlock.Definite, context.DeadlineExceeded)
			ok(t, s.Do(t.Context(), other, nothing))
			unlock()
			ok(t, s.Do(t.Context(), held, nothing))
		}
	})
}

// TestStripesInput: invalid input is an error, and a panic unlocks.
func TestStripesInput(t *testing.T) {
	for _, n := range []int{-1, 1<<20 + 1} {
		_, err := keyed.NewStripes(n)
		wantKind(t, err, interlock.Bug, nil)
	}
	s := stripes(t, 3)
	for _, key := range []string{"", strings.Repeat("x", 513)} {
		wantKind(t, s.Do(t.Context(), key, nothing), interlock.Bug, interlock.ErrName)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	wantKind(t, s.Do(ended, "a", nothing), interlock.Definite, why)
	func() {
		defer func() { _ = recover() }()
		_ = s.Do(t.Context(), "a", func(context.Context) error { panic("x") })
	}()
	ok(t, s.Do(t.Context(), "a", nothing))
	ok(t, s.DoAll(t.Context(), nil, nothing)) // no keys need no lock
}
