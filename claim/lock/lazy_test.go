package lock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

// Whatever was asked of a lazy context before, it ends as one of the standard library.
func TestLazyContextEndsAsOthersDo(t *testing.T) {
	cause := errors.New("cause")
	type end func(c *lazyContext, cancelParent context.CancelCauseFunc)
	for name, test := range map[string]struct {
		detached bool
		bound    time.Duration
		end      end
		err      error
		cause    error
	}{
		"by end":                  {end: func(c *lazyContext, _ context.CancelCauseFunc) { c.end(cause) }, err: context.Canceled, cause: cause},
		"with its parent":         {end: func(_ *lazyContext, p context.CancelCauseFunc) { p(cause) }, err: context.Canceled, cause: cause},
		"not with its parent":     {detached: true, end: func(_ *lazyContext, p context.CancelCauseFunc) { p(cause) }},
		"at its deadline":         {detached: true, bound: time.Second, end: func(*lazyContext, context.CancelCauseFunc) {}, err: context.DeadlineExceeded, cause: context.DeadlineExceeded},
		"by end, before deadline": {bound: time.Second, end: func(c *lazyContext, _ context.CancelCauseFunc) { c.end(nil) }, err: context.Canceled, cause: context.Canceled},
	} {
		for _, early := range []bool{true, false} {
			virtual.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				c := &lazyContext{parent: parent, detached: test.detached}
				defer c.end(nil)
				if test.bound > 0 {
					c.deadline = time.Now().Add(test.bound)
				}
				if early {
					child, stop := context.WithCancel(c)
					defer stop()
					defer func() {
						if test.err != nil && child.Err() == nil {
							t.Errorf("%s: a child goes on", name)
						}
					}()
				}
				test.end(c, cancel)
				time.Sleep(2 * test.bound)
				synctest.Wait()
				if !errors.Is(c.Err(), test.err) {
					t.Errorf("%s, early %v: %v", name, early, c.Err())
				}
				if got := context.Cause(c); !errors.Is(got, test.cause) || !errors.Is(c.Err(), test.err) {
					t.Errorf("%s, early %v: cause %v of %v", name, early, got, c.Err())
				}
			})
		}
	}
}
