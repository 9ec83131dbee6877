package drivertest

import (
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// FenceHarness gives [RunFence] access to one driver.Fence and its store. Each backend
// also implements [FencedData].
type FenceHarness = StoreHarness[driver.Fence]

// FenceBackend is one running store with guarded data.
type FenceBackend = StoreBackend[driver.Fence]

// FencedData reads the guarded data and the records. Its path has no faults.
type FencedData interface {
	// Get reads a key of the data. It returns false if the key does not exist.
	Get(t *testing.T, key string) ([]byte, bool)
	// Rebases lists the stored records of a resource, oldest first.
	Rebases(t *testing.T, resource string) []Rebased
}

// Rebased is the record of one Rebase.
type Rebased struct {
	From, To   interlock.Token
	Reason, By string
}

// RunFence runs the conformance suite of driver.Fence.
func RunFence(t *testing.T, h FenceHarness) {
	runStore(t, h, func(s *storeScene[driver.Fence]) *fenceScene {
		return &fenceScene{storeScene: s, data: s.backend.(FencedData)}
	}, []suiteTest[*fenceScene]{
		// Which tokens enter.
		{"TokensAreOrdered", 0, testTokensAreOrdered},
		{"EnterWithoutWritesRaises", 0, testEnterWithoutWritesRaises},
		{"ImplausibleTokenIsRefused", 0, testImplausibleTokenIsRefused},
		{"NoTokenIsABug", 0, testNoTokenIsABug},
		{"EnterCompetition", 0, testEnterCompetition},
		// Writes.
		{"WritesAreAppliedWithTheMark", 0, testWritesAreAppliedWithTheMark},
		{"RefusalWritesNothing", 0, testRefusalWritesNothing},
		{"InvalidWritesChangeNothing", 0, testInvalidWritesChangeNothing},
		// Resources.
		{"ResourcesAreData", 0, testResourcesAreData},
		{"ResourcesAreNotKeys", 0, testResourcesAreNotKeys},
		{"MarkHasSourceAndTime", 0, testMarkHasSourceAndTime},
		// Repair of a wrong mark.
		{"RebaseDown", 0, testRebaseDown},
		{"RebaseUp", 0, testRebaseUp},
		{"RebaseToNone", 0, testRebaseToNone},
		{"RebaseRefuses", 0, testRebaseRefuses},
		{"RebaseCompetition", 0, testRebaseCompetition},
		// Contexts and faults.
		{"FenceContextAlreadyEnded", 0, testFenceContextAlreadyEnded},
		{"LostReplyToEnter", Servers | LostReplies | onPaths, testLostReplyToEnter},
		{"LostReplyToStrictEnter", Servers | LostReplies | onPaths, testLostReplyToStrictEnter},
		{"LostReplyToRebase", Servers | LostReplies | onPaths, testLostReplyToRebase},
	})
}

// resource is the resource that most tests guard.
const resource = "accounts/42"

// fenceScene is one test with its store and a first fence on it.
type fenceScene struct {
	*storeScene[driver.Fence]
	data FencedData
}

func newToken(t *testing.T, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	testbed.OK(t, err)
	return token
}

func put(key, value string) driver.Write { return driver.Write{Key: key, Value: []byte(value)} }

func (s *fenceScene) enter(token interlock.Token, writes ...driver.Write) error {
	return s.store.Enter(s.Context(), driver.Raise{Resource: resource, Token: token}, writes...)
}

func (s *fenceScene) mustEnter(token interlock.Token, writes ...driver.Write) {
	s.Helper()
	if err := s.enter(token, writes...); err != nil {
		s.Fatalf("enter %q with %d: %v", resource, token, err)
	}
}

func (s *fenceScene) mustRebase(resource string, to interlock.Token) (was driver.Mark) {
	s.Helper()
	was, err := s.store.Rebase(s.Context(), resource, to, "a reason", "an operator")
	if err != nil {
		s.Fatalf("rebase %q to %d: %v", resource, to, err)
	}
	return was
}

func (s *fenceScene) mark(resource string) driver.Mark {
	s.Helper()
	m, err := s.store.Mark(s.Context(), resource)
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
	if got, ok := s.data.Get(s.T, key); !ok || string(got) != want {
		s.Fatalf("key %q holds %q (there: %v), want %q", key, got, ok, want)
	}
}

func (s *fenceScene) mustNotExist(keys ...string) {
	s.Helper()
	for _, key := range keys {
		if got, ok := s.data.Get(s.T, key); ok {
			s.Fatalf("key %q holds %q, and should not be there", key, got)
		}
	}
}
