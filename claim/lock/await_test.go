package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// hinting is a view whose hints the test gives.
type hinting struct {
	driver.Inspector
	hints   chan string
	watches int
	fail    error // of the next watch
}

func (h *hinting) Watch(ctx context.Context, _ string, changed func(string)) error {
	h.watches++
	if err := h.fail; err != nil {
		h.fail = nil
		return err
	}
	changed("")
	for {
		select {
		case name := <-h.hints:
			changed(name)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// looks records what an Await looked for, and when.
type looks struct {
	began   time.Time
	at      []time.Duration
	changed []string
}

func (l *looks) note(changed []string) {
	l.at = append(l.at, time.Since(l.began))
	if changed == nil {
		changed = []string{"any"}
	}
	l.changed = append(l.changed, strings.Join(changed, "+"))
}

func TestAwaitPassesHintsOn(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		v := &hinting{hints: make(chan string)}
		seen := &looks{began: time.Now()}
		told := make(chan error)
		go func() {
			told <- l.Await(b.Context(), v, "n/", func(_ context.Context, changed []string) (bool, time.Duration, error) {
				seen.note(changed)
				time.Sleep(time.Second)
				return len(seen.at) == 5, 0, nil
			})
		}()
		time.Sleep(2500 * time.Millisecond) // two looks, by the clock and by the first hint
		v.hints <- "n/a"                    // the third one begins
		synctest.Wait()
		v.hints <- "n/c"
		v.hints <- "n/b"
		time.Sleep(1500 * time.Millisecond) // the fourth
		v.hints <- ""
		testbed.OK(b, <-told)
		if want := []string{"any", "any", "n/a", "n/b+n/c", "any"}; !slices.Equal(seen.changed, want) || v.watches != 1 {
			b.Errorf("looked for %v with %d watches, want %v", seen.changed, v.watches, want)
		}
		if last := seen.at[4]; last != 4500*time.Millisecond {
			b.Errorf("looked at %v: a hint was not waited for", seen.at)
		}
	})
}

func TestAwaitOpensABrokenWatchAgain(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		broken := &interlock.Error{Op: "watch", Kind: interlock.Retryable, Err: errors.New("connection reset")}
		v := &hinting{fail: broken}
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		err := l.Await(ctx, v, "n/", func(context.Context, []string) (bool, time.Duration, error) {
			return v.watches == 2, 0, nil
		})
		if err != nil || v.watches != 2 {
			b.Errorf("%v, %d watches", err, v.watches)
		}
		denied := &interlock.Error{Op: "watch", Kind: interlock.Definite, Err: errors.New("permission denied")}
		v = &hinting{fail: denied}
		err = l.Await(ctx, v, "n/", func(context.Context, []string) (bool, time.Duration, error) { return false, 0, nil })
		if !errors.Is(err, denied) || v.watches != 1 {
			b.Errorf("%v, %d watches", err, v.watches)
		}
	})
}

func TestAwaitLooksByTheClockAsWell(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		v, seen := &hinting{}, &looks{began: time.Now()}
		expires := []time.Duration{0, 0, time.Second, time.Nanosecond, time.Hour, 0}
		err := l.Await(b.Context(), v, "n/", func(_ context.Context, changed []string) (bool, time.Duration, error) {
			seen.note(changed)
			n := len(seen.at)
			return n == len(expires), expires[n-1], nil
		})
		testbed.OK(b, err)
		want := []time.Duration{0, 0, 3 * time.Second, 4 * time.Second, 4050 * time.Millisecond, 7050 * time.Millisecond}
		if !slices.Equal(seen.at, want) {
			b.Errorf("looked at %v, want %v", seen.at, want)
		}
	})
}

func TestAwaitRepeatsFailedLooks(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(&lock.Options{Attempts: 3})
		for _, c := range []struct {
			failures int
			err      error
			want     error
			looks    int
		}{
			{2, errReplyLost, nil, 3},
			{3, errReplyLost, errReplyLost, 3},
			{1, interlock.ErrName, interlock.ErrName, 1},
		} {
			v, n := &hinting{}, 0
			err := l.Await(b.Context(), v, "n/", func(context.Context, []string) (bool, time.Duration, error) {
				if n++; n <= c.failures {
					return false, 0, c.err
				}
				return true, 0, nil
			})
			if !errors.Is(err, c.want) || n != c.looks || v.watches != 0 {
				b.Errorf("%d times %v: %v after %d looks and %d watches", c.failures, c.err, err, n, v.watches)
			}
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, _ := b.process(nil)
		cause := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(b.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		never := func(context.Context, []string) (bool, time.Duration, error) { return false, 0, nil }
		if err := l.Await(ctx, &hinting{}, "n/", never); err != cause {
			b.Errorf("got %v", err)
		}
		time.AfterFunc(time.Second, func() { _ = l.Close(context.Background()) })
		if err := l.Await(b.Context(), &hinting{}, "n/", never); !errors.Is(err, interlock.ErrClosed) {
			b.Errorf("closed: %v", err)
		}
	})
}

var errRefused = &interlock.Error{Op: "test", Kind: interlock.Retryable, Err: errors.New("connection refused")}

// TestAnOutageIsWaitedOut, however long it lasts, whether requests are refused or
// their answers are lost; hooks say what is wrong meanwhile.
func TestAnOutageIsWaitedOut(t *testing.T) {
	for _, failure := range []error{errRefused, errReplyLost} {
		inBubble(t, func(b *bench) {
			failed := 0
			l, d := b.process(&lock.Options{Hooks: &observe.Lock{RequestFailed: func(e observe.LockRequestFailed) {
				if failed++; e.Failed != failed || e.Name == "" || e.Owner == "" || !errors.Is(e.Err, failure) {
					b.Errorf("event %+v", e)
				}
			}}})
			d.set(func() { d.refuse, d.refuseAll = failure, failure })
			over := time.Now().Add(time.Minute)
			time.AfterFunc(time.Minute, func() { d.set(func() { d.refuse, d.refuseAll = nil, nil }) })
			c := b.acquire(l)
			synctest.Wait()
			if late := time.Since(over); late < 0 || late > 3*time.Second || failed < 20 {
				b.Errorf("acquired %v after the outage, %d requests failed", late, failed)
			}
			b.release(c)

			failed = 0
			d.set(func() { d.refuse, d.refuseAll = failure, failure })
			time.AfterFunc(time.Minute, func() { d.set(func() { d.refuse, d.refuseAll = nil, nil }) })
			all, err := l.AcquireAll(b.Context(), []string{"x"})
			testbed.OK(b, err)
			b.releaseAll(all)
		})
	}
}

// TestAnOutageEndsAWait: at Wait, or at the end of the context, with the last
// reason and the time for which it was tried; a try gives up by itself.
func TestAnOutageEndsAWait(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(&lock.Options{Wait: 20 * time.Second})
		d.set(func() { d.refuse = errRefused })
		began := time.Now()
		_, err := l.Acquire(b.Context(), name)
		if time.Since(began) != 20*time.Second || !errors.Is(err, errRefused) || interlock.Kind(err) != interlock.Retryable ||
			!strings.Contains(err.Error(), "tried for 20s") {
			b.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		_, err = l.Acquire(ctx, name)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) || interlock.Kind(err) != interlock.Definite ||
			!strings.Contains(err.Error(), "tried for 10s") {
			b.Errorf("at the end of the context: %v", err)
		}
		before := d.acquires
		began = time.Now()
		_, err = l.TryAcquire(b.Context(), "another")
		if took := time.Since(began); !errors.Is(err, errRefused) || d.acquires-before != lock.DefaultAttempts || took > 10*time.Second {
			b.Errorf("a try: %v, %d requests in %v", err, d.acquires-before, took)
		}
	})
}

// TestAWaiterBehindATryIsPatient: a try gives up, and one who waits behind it does
// not.
func TestAWaiterBehindATryIsPatient(t *testing.T) {
	inBubble(t, func(b *bench) {
		l, d := b.process(nil)
		d.set(func() { d.refuse = errRefused })
		tried := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(b.Context(), name)
			tried <- err
		}()
		time.Sleep(50 * time.Millisecond)
		time.AfterFunc(time.Minute, func() { d.set(func() { d.refuse = nil }) })
		c := b.acquire(l)
		if err := <-tried; !errors.Is(err, errRefused) {
			b.Errorf("the try: %v", err)
		}
		b.release(c)
	})
}
