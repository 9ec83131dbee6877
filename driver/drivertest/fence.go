package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// FenceHarness tells [RunFence] how to reach one driver.Fence and its store.
type FenceHarness struct {
	// Bubble runs one test; nil calls test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares an empty store for one test, whose clock is that of the
	// test give or take a few minutes; it cleans up by t.Cleanup.
	Start func(t *testing.T) FenceBackend
	// Without says LostReplies for a store that cannot lose them. Whatever it
	// does not name must be there.
	Without Ability
}

// FenceBackend is one running store. One that can lose replies is a
// [FenceFaults] too.
type FenceBackend interface {
	// Open opens the fence as a further process would, on the same store.
	Open(t *testing.T) (driver.Fence, error)
	// Get reads a key of the data past the fence; false if there is none.
	Get(t *testing.T, key string) ([]byte, bool)
	// Rebases lists what the store has recorded for a resource, oldest first.
	Rebases(t *testing.T, resource string) []Rebased
}

// FenceFaults is an extra ability of a FenceBackend: it breaks the path of every
// fence that is open, but not its own.
type FenceFaults interface {
	// DropReplies lets requests through and drops every byte of the answers, at
	// the latest from the next request on that changes something, until Heal.
	DropReplies()
	// Heal ends it and closes what was broken.
	Heal()
}

// Rebased is the record of one Rebase.
type Rebased struct {
	From, To   interlock.Token
	Reason, By string
}

// RunFence runs the suite of driver.Fence, but for the tests that need what
// FenceHarness.Without says is not there.
func RunFence(t *testing.T, h FenceHarness) {
	for _, c := range []struct {
		name  string
		needs Ability
		test  func(*fenceScene)
	}{
		// Which tokens enter.
		{"TokensAreOrdered", 0, testTokensAreOrdered},
		{"EnterWithoutWritesRaises", 0, testEnterWithoutWritesRaises},
		{"ImplausibleTokenIsRefused", 0, testImplausibleTokenIsRefused},
		{"NoTokenIsABug", 0, testNoTokenIsABug},
		{"EnterCompetition", 0, testEnterCompetition},
		// What they write.
		{"WritesAreAppliedWithTheMark", 0, testWritesAreAppliedWithTheMark},
		{"RefusalWritesNothing", 0, testRefusalWritesNothing},
		{"DoubtfulWritesAreNotHalfDone", 0, testDoubtfulWritesAreNotHalfDone},
		// What resources are.
		{"ResourcesAreData", 0, testResourcesAreData},
		{"ResourcesAreNotKeys", 0, testResourcesAreNotKeys},
		{"MarkTells", 0, testMarkTells},
		// The way out of a wrong mark.
		{"RebaseDown", 0, testRebaseDown},
		{"RebaseUp", 0, testRebaseUp},
		{"RebaseToNone", 0, testRebaseToNone},
		{"RebaseRefuses", 0, testRebaseRefuses},
		{"RebaseCompetition", 0, testRebaseCompetition},
		// The contract around it.
		{"FenceContextAlreadyEnded", 0, testFenceContextAlreadyEnded},
		{"LostReplyToEnter", LostReplies, testLostReplyToEnter},
		{"LostReplyToStrictEnter", LostReplies, testLostReplyToStrictEnter},
		{"LostReplyToRebase", LostReplies, testLostReplyToRebase},
	} {
		if c.needs&h.Without != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h.run(t, c.test)
		})
	}
}

func (h FenceHarness) run(t *testing.T, test func(*fenceScene)) {
	bubble := h.Bubble
	if bubble == nil {
		bubble = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	bubble(t, func(t *testing.T) {
		s := &fenceScene{T: t, backend: h.Start(t), start: interlock.CounterAt(time.Now())}
		s.fence = s.open()
		test(s)
	})
}

// resource is the one that most tests guard.
const resource = "accounts/42"

// fenceScene is one test with its store and a first fence on it.
type fenceScene struct {
	*testing.T
	backend FenceBackend
	fence   driver.Fence
	start   int64 // the counter of the present time
}

func (s *fenceScene) open() driver.Fence {
	s.Helper()
	f, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return f
}

// token is one whose counter is so far from that of the present time.
func (s *fenceScene) token(ahead int64, sub int) interlock.Token {
	return newToken(s.T, s.start+ahead, sub)
}

func newToken(t *testing.T, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func put(key, value string) driver.Write { return driver.Write{Key: key, Value: []byte(value)} }

func (s *fenceScene) enter(token interlock.Token, writes ...driver.Write) error {
	return s.fence.Enter(s.Context(), driver.Raise{Resource: resource, Token: token}, writes...)
}

func (s *fenceScene) mustEnter(token interlock.Token, writes ...driver.Write) {
	s.Helper()
	if err := s.enter(token, writes...); err != nil {
		s.Fatalf("enter %q with %d: %v", resource, token, err)
	}
}

func (s *fenceScene) mustRebase(resource string, to interlock.Token) (was driver.Mark) {
	s.Helper()
	was, err := s.fence.Rebase(s.Context(), resource, to, "a reason", "an operator")
	if err != nil {
		s.Fatalf("rebase %q to %d: %v", resource, to, err)
	}
	return was
}

// mustBeStale requires a refusal that tells both tokens.
func (s *fenceScene) mustBeStale(err error, seen, got interlock.Token) {
	s.Helper()
	s.mustFail(err, interlock.Definite, interlock.ErrStaleToken)
	var stale *interlock.StaleTokenError
	if !errors.As(err, &stale) || *stale != (interlock.StaleTokenError{Resource: resource, Seen: seen, Got: got}) {
		s.Fatalf("the refusal tells %+v, want %q, %d seen, %d got", stale, resource, seen, got)
	}
}

// mustFail requires an error of a kind that is also another; nil is any.
func (s *fenceScene) mustFail(err error, kind interlock.ErrorKind, is error) {
	s.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		s.Fatalf("got %v (%v), want an error of kind %v (%v)", err, interlock.Kind(err), kind, is)
	}
}

func (s *fenceScene) mark(resource string) driver.Mark {
	s.Helper()
	m, err := s.fence.Mark(s.Context(), resource)
	if err != nil {
		s.Fatalf("mark of %q: %v", resource, err)
	}
	return m
}

func (s *fenceScene) mustHaveMark(resource string, want interlock.Token) {
	s.Helper()
	if m := s.mark(resource); m.Token != want {
		s.Fatalf("the mark of %q is %d, want %d", resource, m.Token, want)
	}
}

func (s *fenceScene) mustRead(key, want string) {
	s.Helper()
	if got, ok := s.backend.Get(s.T, key); !ok || string(got) != want {
		s.Fatalf("key %q holds %q (there: %v), want %q", key, got, ok, want)
	}
}

func (s *fenceScene) mustNotExist(keys ...string) {
	s.Helper()
	for _, key := range keys {
		if got, ok := s.backend.Get(s.T, key); ok {
			s.Fatalf("key %q holds %q, and should not be there", key, got)
		}
	}
}

// persist repeats what may be repeated, as the portable types do.
func (s *fenceScene) persist(what string, try func(context.Context) error) error {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		err := try(ctx)
		cancel()
		if kind := interlock.Kind(err); err == nil || kind != interlock.Uncertain && kind != interlock.Retryable {
			return err
		}
		if time.Now().After(end) {
			s.Fatalf("%s: still no outcome after %v: %v", what, patience, err)
		}
	}
}
