package drivertest

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// testFenceContextAlreadyEnded checks that the cause is returned and nothing was done.
func testFenceContextAlreadyEnded(s *fenceScene) {
	s.mustEnter(s.token(0, 0))
	ctx, cause := endedContext(s.T)
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0)}
	s.mustFail(s.store.Enter(ctx, raise, put("data", "x")), interlock.Definite, cause)
	_, err := s.store.Mark(ctx, resource)
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Rebase(ctx, resource, 0, "a reason", "an operator")
	s.mustFail(err, interlock.Definite, cause)
	s.mustHaveMark(resource, s.token(0, 0))
	s.mustNotExist("data")
	s.mustRecord(resource)
}

// testLostReplyToEnter checks that a repetition converges.
func testLostReplyToEnter(s *fenceScene) {
	s.mustEnter(s.token(0, 0), put("data", "before"), put("doomed", "x")) // the connection is open
	enter := func(ctx context.Context) error {
		return s.store.Enter(ctx, driver.Raise{Resource: resource, Token: s.token(1, 0)},
			put("data", "after"), driver.Write{Key: "doomed", Delete: true})
	}
	s.loseReply(enter)
	s.eventuallyHolds("data", "after")
	s.persist("enter again", enter)
	s.mustHaveMark(resource, s.token(1, 0))
	s.mustRead("data", "after")
	s.mustNotExist("doomed")
}

// testLostReplyToStrictEnter checks that a repetition is admitted or finds its own token.
func testLostReplyToStrictEnter(s *fenceScene) {
	s.mustEnter(s.token(0, 0)) // the connection is open
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0), Strict: true}
	enter := func(ctx context.Context) error { return s.store.Enter(ctx, raise, put("data", "once")) }
	s.loseReply(enter)
	s.eventuallyHolds("data", "once")
	s.persist("enter again", func(ctx context.Context) error {
		err := enter(ctx)
		if errors.Is(err, interlock.ErrStaleToken) {
			s.mustBeStale(err, resource, raise.Token, raise.Token)
			return nil
		}
		return err
	})
	s.mustHaveMark(resource, raise.Token)
	s.mustRead("data", "once")
}

// eventuallyHolds waits until a write without a reply has taken effect.
func (s *fenceScene) eventuallyHolds(key, value string) {
	s.Helper()
	s.persistUntil("write "+key, func(context.Context) (bool, error) {
		got, ok := s.data.Get(s.T, key)
		return ok && string(got) == value, nil
	})
}

// testLostReplyToRebase checks that a repetition converges and the records are correct.
func testLostReplyToRebase(s *fenceScene) {
	high, low := s.token(1, 0), s.token(0, 0)
	s.mustEnter(high)
	s.mustRebase("another", low) // every request of a first call has been answered
	rebase := func(ctx context.Context) error {
		_, err := s.store.Rebase(ctx, resource, low, "a reason", "an operator")
		return err
	}
	s.loseReply(rebase)
	s.persistUntil("record the rebase", func(context.Context) (bool, error) {
		return len(s.data.Rebases(s.T, resource)) > 0, nil
	})
	s.persist("rebase again", rebase)
	s.mustHaveMark(resource, low)
	for i, r := range s.data.Rebases(s.T, resource) {
		want := Rebased{low, low, "a reason", "an operator"}
		if i == 0 {
			want.From = high
		}
		if r != want {
			s.Fatalf("record %d is %+v, want %+v", i, r, want)
		}
	}
}
