package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

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
