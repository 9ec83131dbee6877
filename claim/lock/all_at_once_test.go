package lock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

var abc = []string{"a", "b", "c"}

func (b *bench) mustAcquireAll(l *lock.Fenced, names ...string) lock.Claims {
	b.Helper()
	claims, err := l.AcquireAll(b.Context(), names)
	testbed.OK(b, err)
	return claims
}

func (b *bench) releaseAll(claims lock.Claims) {
	b.Helper()
	testbed.OK(b, claims.Release(b.Context()))
}

// mustHaveLeft requires that the backend keeps these names and no others.
func (b *bench) mustHaveLeft(names ...string) {
	b.Helper()
	synctest.Wait()
	if left := b.held(); !slices.Equal(left, names) {
		b.Errorf("left %v, want %v", left, names)
	}
}

// mustHaveAsked checks what the driver was asked, for how many batches and names.
func (f *faulty) mustHaveAsked(b *bench, batches, acquires int) {
	b.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.batches != batches || f.acquires != acquires {
		b.Errorf("%d batches and %d acquires, want %d and %d", f.batches, f.acquires, batches, acquires)
	}
}

// What is held is waited for name by name; a try is answered at once.
func TestAtOnceOrOneByOne(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		c := b.acquireNamed(other, "b")
		l, d := b.process(nil)
		var held *interlock.HeldError
		if _, err := l.TryAcquireAll(b.Context(), abc); !errors.As(err, &held) || held.Name != "b" || held.Owner != c.Owner() {
			b.Errorf("got %v", err)
		}
		d.mustHaveAsked(b, 1, 0)
		b.mustHaveLeft("b")
		time.AfterFunc(time.Second, func() { b.release(c) })
		began := time.Now()
		b.releaseAll(b.mustAcquireAll(l, abc...))
		if took := time.Since(began); took != time.Second {
			b.Errorf("it took %v", took)
		}
		d.mustHaveAsked(b, 2, 3)
		b.releaseAll(b.mustAcquireAll(l, "a"))
		d.mustHaveAsked(b, 2, 4) // one name is no batch
		b.mustHaveLeft()
	})
}

// This process has one contender for a name, so what it uses is queued for here.
func TestABusyNameIsQueuedForInTheProcess(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Turn: -1})
		c := b.acquireNamed(l, "b")
		time.AfterFunc(time.Second, func() { b.release(c) })
		claims := b.mustAcquireAll(l, abc...)
		if got := claims.On("b").Token(); got.Counter() != c.Token().Counter() || got.Sub() != 1 {
			b.Errorf("token %d after %d was not handed on", got, c.Token())
		}
		d.mustHaveAsked(b, 0, 3)
		b.releaseAll(claims)
		b.mustHaveLeft()
	})
}

// Others of the process queue behind names that are taken together, each for
// itself, and a try is refused.
func TestOthersQueueBehindABatch(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		got := make(chan *lock.Claim, 1)
		d.during = func() {
			go func() {
				c, err := l.Acquire(b.Context(), "b")
				if err != nil {
					b.Error(err)
				}
				got <- c
			}()
			synctest.Wait()
			if _, err := l.TryAcquire(b.Context(), "c"); !errors.Is(err, interlock.ErrHeld) {
				b.Errorf("a try: %v", err)
			}
		}
		claims := b.mustAcquireAll(l, abc...)
		b.release(claims.On("b"))
		c := <-got
		if c.Token() != claims.On("b").Token()+1 {
			b.Errorf("token %d after %d", c.Token(), claims.On("b").Token())
		}
		d.mustHaveAsked(b, 1, 0)
		b.release(c)
		b.releaseAll(claims)
		b.mustHaveLeft()
	})
}

func TestABatchWhoseAnswersAreLost(t *testing.T) {
	inBubble(t, func(b *bench) {
		const attempts = 6
		l, d := b.process(&lock.Options{Attempts: attempts})
		d.set(func() { d.loseAcquires = 2 })
		claims := b.mustAcquireAll(l, abc...)
		d.mustHaveAsked(b, 3, 0)
		b.releaseAll(claims)
		b.mustHaveLeft()

		d.set(func() { d.loseAcquires = 100 })
		if _, err := l.AcquireAll(b.Context(), abc); !errors.Is(err, interlock.ErrUncertain) {
			b.Errorf("got %v", err)
		}
		d.mustHaveAsked(b, 3+attempts, 0)
		b.mustHaveLeft()

		d.set(func() { d.loseAcquires, d.stopped = 0, true })
		if _, err := l.AcquireAll(b.Context(), abc); !errors.Is(err, interlock.ErrExpired) {
			b.Errorf("leases that are over: %v", err)
		}
		b.mustHaveLeft()
	})
}

// A refusal after an answer was lost does not prove that nothing will be done.
func TestARefusalAfterALostAnswerIsGivenUp(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		d.set(func() { d.loseAcquires = 1 })
		d.afterAcquired = func() { d.set(func() { d.refuseAll = &interlock.HeldError{Name: "b"} }) }
		if _, err := l.TryAcquireAll(b.Context(), abc); !errors.Is(err, interlock.ErrHeld) {
			b.Errorf("got %v", err)
		}
		b.mustHaveLeft()
	})
}

// A caller that leaves gives up what was asked for, and those behind it go on.
func TestABatchThatIsAbandoned(t *testing.T) {
	for _, limited := range []bool{true, false} {
		inBubble(t, func(b *bench) {
			options, ctx, want := &lock.Options{Attempts: 100}, b.Context(), context.DeadlineExceeded
			if limited {
				options.Wait = time.Second
			} else {
				limit, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				ctx = limit
			}
			l, d := b.process(options)
			d.set(func() { d.loseAcquires = 100 })
			var behind sync.WaitGroup
			behind.Go(func() {
				time.Sleep(time.Second / 2)
				c, err := l.Acquire(b.Context(), "b")
				if limited && errors.Is(err, errReplyLost) {
					return // its own bound passed
				}
				if err != nil {
					b.Errorf("behind: %v", err)
					return
				}
				b.release(c)
			})
			began := time.Now()
			_, err := l.AcquireAll(ctx, abc)
			if limited {
				want = errReplyLost
			}
			if took := time.Since(began); took != time.Second || !errors.Is(err, want) {
				b.Errorf("after %v: %v", took, err)
			}
			d.set(func() { d.loseAcquires = 0 })
			behind.Wait()
			b.mustHaveLeft()
		})
	}
}

// A grant that comes when the caller has left goes to those behind, or back.
func TestAGrantForACallerWhoHasLeft(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		ctx, cancel := context.WithCancel(b.Context())
		got := make(chan error, 1)
		d.afterAcquired = func() {
			d.afterAcquired = nil
			go func() {
				c, err := l.Acquire(b.Context(), "b")
				if err == nil {
					err = c.Release(b.Context())
				}
				got <- err
			}()
			synctest.Wait()
			cancel()
			synctest.Wait()
		}
		if _, err := l.AcquireAll(ctx, abc); !errors.Is(err, context.Canceled) {
			b.Errorf("got %v", err)
		}
		if err := <-got; err != nil {
			b.Errorf("behind: %v", err)
		}
		d.mustHaveAsked(b, 1, 0)
		b.mustHaveLeft()
	})
}

// The names are not to be had in one step: no waiter behind gets that error.
func TestABatchThatIsRefusedAsSuch(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		d.refuseAll = errOneByOne
		got := make(chan error, 1)
		d.during = func() {
			go func() {
				c, err := l.Acquire(b.Context(), "b")
				if err == nil {
					err = c.Release(b.Context())
				}
				got <- err
			}()
			synctest.Wait()
		}
		b.releaseAll(b.mustAcquireAll(l, abc...))
		if err := <-got; err != nil {
			b.Errorf("behind: %v", err)
		}
		d.set(func() { d.during = nil })
		claims, err := l.TryAcquireAll(b.Context(), abc)
		testbed.OK(b, err)
		b.releaseAll(claims)
		b.mustHaveLeft()
	})
}

// One of the claims is lost before the caller has it.
func TestALossBeforeTheBatchIsHandedOver(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		d.afterAcquired = func() {
			d.afterAcquired = nil
			b.space.Revoke("b")
			time.Sleep(ttl / 2) // a renewal finds out
		}
		claims := b.mustAcquireAll(l, abc...)
		for _, c := range claims {
			if !c.Valid() {
				b.Errorf("%q is not held", c.Name())
			}
		}
		d.mustHaveAsked(b, 1, 3)
		b.releaseAll(claims)
		b.mustHaveLeft()
	})
}

func TestCloseDuringABatch(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		closed := make(chan error, 1)
		d.afterAcquired = func() {
			go func() { closed <- l.Close(b.Context()) }()
			synctest.Wait()
		}
		if _, err := l.AcquireAll(b.Context(), abc); !errors.Is(err, interlock.ErrClosed) {
			b.Errorf("got %v", err)
		}
		testbed.OK(b, <-closed)
		b.mustHaveLeft()
	})
}

func TestHooksHearOfEachNameOfABatch(t *testing.T) {
	inBubble(t, func(b *bench) {
		var heard []observe.LockAcquired
		l, _ := b.process(&lock.Options{Hooks: &observe.Lock{Acquired: func(e observe.LockAcquired) { heard = append(heard, e) }}})
		claims := b.mustAcquireAll(l, abc...)
		for i, e := range heard {
			if len(heard) != 3 || e.Name != abc[i] || e.Owner != claims[i].Owner() || e.Token != claims[i].Token() || e.Err != nil {
				b.Errorf("heard %+v", e)
			}
		}
		b.release(claims[0])
		other, _ := b.process(nil)
		b.mustAcquireAll(other, "a")
		heard = nil
		b.release(claims[1])
		b.release(claims[2])
		_, err := l.TryAcquireAll(b.Context(), []string{"0", "a"})
		if len(heard) != 1 || heard[0].Name != "a" || heard[0].Err != err || err == nil {
			b.Errorf("heard %+v of %v", heard, err)
		}
	})
}
