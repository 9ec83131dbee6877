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
