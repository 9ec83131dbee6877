package drivertest

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// testFenceContextAlreadyEnded: the cause comes back, and nothing was done.
func testFenceContextAlreadyEnded(s *fenceScene) {
	s.mustEnter(s.token(0, 0))
	cause := errors.New("the caller changed its mind")
	ctx, cancel := context.WithCancelCause(s.Context())
	cancel(cause)
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0)}
	s.mustFail(s.fence.Enter(ctx, raise, put("data", "x")), interlock.Definite, cause)
	_, err := s.fence.Mark(ctx, resource)
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.fence.Rebase(ctx, resource, 0, "a reason", "an operator")
	s.mustFail(err, interlock.Definite, cause)
	s.mustHaveMark(resource, s.token(0, 0))
	s.mustNotExist("data")
	s.mustRecord(resource)
}

// faults are what can be broken, or the harness has lost an ability without
// saying so.
func (s *fenceScene) faults() FenceFaults {
	s.Helper()
	faults, ok := s.backend.(FenceFaults)
	if !ok {
		s.Fatal("the harness lacks what this test needs, and Without does not say so")
	}
	return faults
}

// loseReply calls try while its request is carried out and its answer is lost:
// the outcome is unknown, and said to be so soon after the caller's time is up.
func (s *fenceScene) loseReply(faults FenceFaults, done func() bool, try func(context.Context) error) {
	s.Helper()
	errTimeUp := errors.New("the caller has no more time")
	faults.DropReplies()
	ctx, cancel := context.WithTimeoutCause(s.Context(), 500*time.Millisecond, errTimeUp)
	defer cancel()
	began := time.Now()
	err := try(ctx)
	if took := time.Since(began); took > 3*time.Second {
		s.Fatalf("it came back after %v, and had 500 ms", took)
	}
	s.mustFail(err, interlock.Uncertain, errTimeUp)
	s.mustFail(err, interlock.Uncertain, interlock.ErrUncertain)
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("the request was not carried out within %v", patience)
		}
	}
	faults.Heal()
}

// testLostReplyToEnter: repeating it converges.
func testLostReplyToEnter(s *fenceScene) {
	faults := s.faults()
	s.mustEnter(s.token(0, 0), put("data", "before"), put("doomed", "x")) // the connection stands
	enter := func(ctx context.Context) error {
		return s.fence.Enter(ctx, driver.Raise{Resource: resource, Token: s.token(1, 0)},
			put("data", "after"), driver.Write{Key: "doomed", Delete: true})
	}
	s.loseReply(faults, s.holds("data", "after"), enter)
	if err := s.persist("enter again", enter); err != nil {
		s.Fatalf("repeating an enter whose reply was lost: %v", err)
	}
	s.mustHaveMark(resource, s.token(1, 0))
	s.mustRead("data", "after")
	s.mustNotExist("doomed")
}

// testLostReplyToStrictEnter: the repetition is let in or finds its own token.
func testLostReplyToStrictEnter(s *fenceScene) {
	faults := s.faults()
	s.mustEnter(s.token(0, 0)) // the connection stands
	raise := driver.Raise{Resource: resource, Token: s.token(1, 0), Strict: true}
	enter := func(ctx context.Context) error { return s.fence.Enter(ctx, raise, put("data", "once")) }
	s.loseReply(faults, s.holds("data", "once"), enter)
	if err := s.persist("enter again", enter); err != nil {
		s.mustBeStale(err, raise.Token, raise.Token)
	}
	s.mustHaveMark(resource, raise.Token)
	s.mustRead("data", "once")
}

func (s *fenceScene) holds(key, value string) func() bool {
	return func() bool {
		got, ok := s.backend.Get(s.T, key)
		return ok && string(got) == value
	}
}

// testLostReplyToRebase: repeating it converges, and the record stays true.
func testLostReplyToRebase(s *fenceScene) {
	faults := s.faults()
	high, low := s.token(1, 0), s.token(0, 0)
	s.mustEnter(high)
	s.mustRebase("another", low) // whatever a first call needs has been answered
	rebase := func(ctx context.Context) error {
		_, err := s.fence.Rebase(ctx, resource, low, "a reason", "an operator")
		return err
	}
	recorded := func() bool { return len(s.backend.Rebases(s.T, resource)) > 0 }
	s.loseReply(faults, recorded, rebase)
	if err := s.persist("rebase again", rebase); err != nil {
		s.Fatalf("repeating a rebase whose reply was lost: %v", err)
	}
	s.mustHaveMark(resource, low)
	for i, r := range s.backend.Rebases(s.T, resource) {
		want := Rebased{low, low, "a reason", "an operator"}
		if i == 0 {
			want.From = high
		}
		if r != want {
			s.Fatalf("record %d is %+v, want %+v", i, r, want)
		}
	}
}
