package lock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// held is every name that the backend has.
func (b *bench) held() (names []string) {
	d := b.space.Open(nil)
	defer d.Close(context.Background())
	states, _, _ := d.Locks(b.Context(), "", 100)
	for _, s := range states {
		names = append(names, s.Name)
	}
	return names
}

// eachWay runs a test on a driver that takes several names in one step, and on one
// that refuses to.
func eachWay(t *testing.T, test func(b *bench, refusal error)) {
	for _, refusal := range []error{nil, errOneByOne} {
		inBubble(t, func(b *bench) { test(b, refusal) })
	}
}

var errOneByOne = &interlock.Error{Op: "test", Kind: interlock.Definite, Err: driver.ErrNotInOneStep}

func TestAllAreHeldAtOnce(t *testing.T) {
	eachWay(t, func(b *bench, refusal error) {
		l, d := b.process(nil)
		d.refuseAll = refusal
		err := l.DoAll(b.Context(), []string{"c", "a", "b", "a"}, func(ctx context.Context, claims lock.Claims) error {
			time.Sleep(3 * ttl) // renewed meanwhile
			for i, want := range []string{"a", "b", "c"} {
				c := claims[i]
				if c.Name() != want || !c.Valid() || claims.On(want) != c || i > 0 && c.Token() == claims[i-1].Token() {
					b.Errorf("claim %d: %q, valid %v, token %d", i, c.Name(), c.Valid(), c.Token())
				}
				if _, ok := l.Held(ctx, want); !ok {
					b.Errorf("%q is not found in the work's context", want)
				}
			}
			if len(claims) != 3 || claims.On("d") != nil || ctx.Err() != nil {
				b.Errorf("%d claims, ctx %v", len(claims), ctx.Err())
			}
			return nil
		})
		if err != nil || len(b.held()) != 0 || d.batches != 1 || (d.acquires != 3) == (refusal != nil) || d.releases != 3 {
			b.Fatalf("%v, left %v, %d batches, %d acquires, %d releases", err, b.held(), d.batches, d.acquires, d.releases)
		}
	})
}

func TestAllEndWithAnyOfThem(t *testing.T) {
	for _, lost := range []string{"a", "b", "c"} {
		eachWay(t, func(b *bench, refusal error) {
			l, d := b.process(nil)
			d.refuseAll = refusal
			err := l.DoAll(b.Context(), []string{"a", "b", "c"}, func(ctx context.Context, claims lock.Claims) error {
				b.space.Revoke(lost)
				<-ctx.Done()
				if context.Cause(ctx) != interlock.ErrLost || claims.On(lost).Valid() {
					b.Errorf("cause %v", context.Cause(ctx))
				}
				return nil
			})
			if !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Uncertain {
				b.Errorf("without %q: %v", lost, err)
			}
			b.mustHaveLeft()
		})
	}
}

func TestAllOrNothing(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		c := b.acquireNamed(other, "b")
		nothing := func(what string, target error, err error, claims lock.Claims) {
			b.Helper()
			if !errors.Is(err, target) || claims != nil {
				b.Errorf("%s: %v, %d claims", what, err, len(claims))
			}
			b.mustHaveLeft("b")
		}
		l, d := b.process(&lock.Options{Wait: 2 * time.Second})
		began := time.Now()
		claims, err := l.AcquireAll(b.Context(), []string{"a", "b", "c"})
		nothing("a bounded wait", interlock.ErrHeld, err, claims)
		if took := time.Since(began); took != 2*time.Second {
			b.Errorf("the wait lasted %v", took)
		}
		claims, err = l.TryAcquireAll(b.Context(), []string{"a", "b", "c"})
		nothing("a try", interlock.ErrHeld, err, claims)
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		claims, err = l.AcquireAll(ctx, []string{"a", "b"})
		nothing("a cancelled wait", context.DeadlineExceeded, err, claims)
		d.set(func() { d.refuse = errReplyLost })
		claims, err = l.AcquireAll(b.Context(), []string{"a", "c"})
		nothing("an outage", errReplyLost, err, claims)
		d.set(func() { d.refuse = nil })
		claims, err = l.AcquireAll(b.Context(), nil)
		nothing("no names", nil, nil, claims)
		if interlock.Kind(err) != interlock.Bug {
			b.Errorf("no names: %v", err)
		}
		claims, err = l.AcquireAll(b.Context(), []string{"a", ""})
		nothing("an empty name", interlock.ErrName, err, claims)
		b.release(c)
	})
}

// Wait bounds all of the names together.
func TestWaitIsForAllTogether(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		held := b.mustAcquireAll(other, "a", "b")
		time.AfterFunc(time.Second, func() { b.release(held.On("a")) })
		l, _ := b.process(&lock.Options{Wait: 3 * time.Second})
		began := time.Now()
		_, err := l.AcquireAll(b.Context(), []string{"a", "b"})
		if took := time.Since(began); !errors.Is(err, interlock.ErrHeld) || took != 3*time.Second {
			b.Errorf("after %v: %v", took, err)
		}
		b.releaseAll(held)
	})
}

func TestAClaimThatEndsWhileOthersAreAwaited(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		c := b.acquireNamed(other, "b")
		l, _ := b.process(nil)
		told := make(chan error)
		go func() { _, err := l.AcquireAll(b.Context(), []string{"a", "b"}); told <- err }()
		synctest.Wait()
		b.space.Revoke("a")
		if err := <-told; !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Retryable {
			b.Errorf("got %v (%v)", err, interlock.Kind(err))
		}
		b.mustHaveLeft("b")
		b.release(c)
	})
}

// Giving back goes on, and Close waits for it, when the caller does not wait.
func TestACancelledCallDoesNotWaitForAnOutage(t *testing.T) {
	inBubble(t, func(b *bench) {
		other, _ := b.process(nil)
		c := b.acquireNamed(other, "b")
		l, d := b.process(nil)
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		d.set(func() { d.loseReleases = 3 })
		began := time.Now()
		_, err := l.AcquireAll(ctx, []string{"a", "b"})
		if took := time.Since(began); took != time.Second || !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("after %v: %v", took, err)
		}
		if err := l.Close(b.Context()); err != nil {
			b.Error(err)
		}
		if d.releases < 4 {
			b.Errorf("closed after %d releases", d.releases)
		}
		b.release(c)
	})
}

func TestAllRefusesReentry(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		err := l.Do(b.Context(), "b", func(ctx context.Context, _ interlock.Claim) error {
			before := d.acquires
			_, err := l.AcquireAll(ctx, []string{"a", "b"})
			if d.acquires != before {
				b.Error("something was asked for")
			}
			return err
		})
		if !errors.Is(err, interlock.ErrReentered) {
			b.Fatalf("got %v", err)
		}
	})
}

// Whatever order callers write names in, they never wait in a circle; each name
// has rising tokens and one holder.
func TestNoOrderOfNamesDeadlocks(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, func(b *bench) {
			names := []string{"a", "b", "c", "d"}
			var mu sync.Mutex
			marks, inside := map[string]interlock.Token{}, map[string]int{}
			enter := func(claims lock.Claims, by int) {
				mu.Lock()
				defer mu.Unlock()
				for _, c := range claims {
					inside[c.Name()] += by
					if by > 0 && (inside[c.Name()] != 1 || c.Token() <= marks[c.Name()]) {
						b.Errorf("%d inside %q, token %d after %d", inside[c.Name()], c.Name(), c.Token(), marks[c.Name()])
					}
					marks[c.Name()] = max(marks[c.Name()], c.Token())
				}
			}
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			var all sync.WaitGroup
			for process := range uint64(3) {
				l, _ := b.process(nil)
				for worker := range uint64(2) {
					random := rand.New(rand.NewPCG(seed, process<<8|worker))
					all.Go(func() {
						for range 10 {
							mine := slices.Clone(names)
							random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
							err := l.DoAll(ctx, mine[:1+random.IntN(4)], func(ctx context.Context, claims lock.Claims) error {
								enter(claims, 1)
								time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
								enter(claims, -1)
								return nil
							})
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
			}
			all.Wait()
			b.mustHaveLeft()
		})
	}
}

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
			go func() { got <- b.acquireNamed(l, "b") }()
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
			go func() { got <- l.Do(b.Context(), "b", func(context.Context, interlock.Claim) error { return nil }) }()
			synctest.Wait()
			cancel()
			synctest.Wait()
		}
		if _, err := l.AcquireAll(ctx, abc); !errors.Is(err, context.Canceled) {
			b.Errorf("got %v", err)
		}
		testbed.OK(b, <-got)
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
			go func() { got <- l.Do(b.Context(), "b", func(context.Context, interlock.Claim) error { return nil }) }()
			synctest.Wait()
		}
		b.releaseAll(b.mustAcquireAll(l, abc...))
		testbed.OK(b, <-got)
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
			time.Sleep(ttl / 2) // a renewal finds out, and ends the lease
		}
		b.mustHoldAll(b.mustAcquireAll(l, abc...))
		d.mustHaveAsked(b, 2, 0)
		d.loses = "b" // and the lease is still to be ended
		b.mustHoldAll(b.mustAcquireAll(l, abc...))
		d.mustHaveAsked(b, 3, 3)
		b.mustHaveLeft()
	})
}

// mustHoldAll requires that claims are held, and releases them.
func (b *bench) mustHoldAll(claims lock.Claims) {
	b.Helper()
	for _, c := range claims {
		if !c.Valid() {
			b.Errorf("%q is not held", c.Name())
		}
	}
	b.releaseAll(claims)
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
