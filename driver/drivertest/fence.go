package drivertest

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

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

// testTokensAreOrdered checks that a lower token is rejected, and an equal one only by
// a strict Enter. The tokens include pairs that differ in their last bits and numbers
// that a float cannot represent.
func testTokensAreOrdered(s *fenceScene) {
	var seen interlock.Token
	s.mustEnter(newToken(s.T, 1, 0), put("data", "first"))
	for i, step := range tokenSteps(s.T, s.start) {
		token, value := step.token, fmt.Sprint("step ", i)
		s.Logf("step %d: token %d after %d, strict %v", i, token, seen, step.strict)
		before, _ := s.data.Get(s.T, "data")
		err := s.store.Enter(s.Context(), driver.Raise{Resource: resource, Token: token, Strict: step.strict}, put("data", value))
		switch {
		case !step.accepted:
			s.mustBeStale(err, resource, seen, token)
			s.mustRead("data", string(before))
		case err != nil:
			s.Fatal(err)
		default:
			s.mustRead("data", value)
			seen = token
		}
		s.mustHaveMark(resource, seen)
	}
}

// testEnterWithoutWritesRaises checks it because a holder may enter before it reads.
func testEnterWithoutWritesRaises(s *fenceScene) {
	high, low := s.token(1, 0), s.token(0, 0)
	s.mustEnter(low, put("data", "of the lower"))
	s.mustEnter(high)
	s.mustHaveMark(resource, high)
	s.mustBeStale(s.enter(low), resource, high, low)
	s.mustBeStale(s.enter(low, put("data", "late")), resource, high, low)
	s.mustRead("data", "of the lower")
}

// testImplausibleTokenIsRefused checks that such a token is not stored: it would
// reject every later token.
func testImplausibleTokenIsRefused(s *fenceScene) {
	at := func(ahead time.Duration) interlock.Token {
		return newToken(s.T, interlock.CounterAt(time.Now().Add(ahead)), 0)
	}
	absurd := []interlock.Token{at(interlock.MaxAhead + time.Hour), math.MaxInt64}
	for _, token := range absurd {
		s.mustFail(s.enter(token, put("data", "absurd")), interlock.Definite, interlock.ErrImplausibleToken)
	}
	s.mustHaveMark(resource, 0)
	s.mustNotExist("data")
	s.mustEnter(s.token(0, 0))
	for _, token := range absurd {
		s.mustFail(s.enter(token, put("data", "absurd")), interlock.Definite, interlock.ErrImplausibleToken)
	}
	s.mustHaveMark(resource, s.token(0, 0))
	s.mustEnter(s.token(0, 1), put("data", "plausible"))
	s.mustEnter(at(interlock.MaxAhead - time.Hour))
	s.mustRead("data", "plausible")
}

// testNoTokenIsABug: zero is no token, and no driver issues one below 1<<12.
func testNoTokenIsABug(s *fenceScene) {
	for _, token := range []interlock.Token{0, -1, math.MinInt64, 1, interlock.MaxSub} {
		for _, strict := range []bool{false, true} {
			raise := driver.Raise{Resource: resource, Token: token, Strict: strict}
			s.mustFail(s.store.Enter(s.Context(), raise, put("data", "x")), interlock.Bug, nil)
		}
	}
	s.mustHaveMark(resource, 0)
	s.mustNotExist("data")
}

// claims is the number of competing claims.
const claims = 50

// testEnterCompetition has claims of several processes enter at the same time. Each
// admitted claim blocks its predecessor, readers never see an older state, and the
// highest token remains.
func testEnterCompetition(s *fenceScene) {
	var outcomes [claims]entered
	var last interlock.Token
	readUntil(func() {
		s.atOnce(claims, func(i int, f driver.Fence) (err error) {
			outcomes[i], err = s.compete(f, s.token(int64(1+i*37%claims), 1))
			return err
		})
	}, func() { last = s.mustNotGoBack(last) })
	accepted, refused := map[interlock.Token]bool{}, []entered{}
	for _, o := range outcomes {
		if o.seen == 0 {
			accepted[o.token] = true
		} else {
			refused = append(refused, o)
		}
	}
	highest := s.token(claims, 1)
	s.mustHaveMark(resource, highest)
	s.mustRead("last", highest.String())
	if !accepted[highest] {
		s.Fatal("the highest of all was refused")
	}
	for token := range accepted {
		s.mustRead("by/"+token.String(), token.String())
	}
	for _, o := range refused {
		s.mustNotExist("by/" + o.token.String())
		if !accepted[o.seen] || o.seen <= o.token {
			s.Fatalf("token %d was refused for %d, which is not above it or did not enter", o.token, o.seen)
		}
	}
}

// entered is the outcome of one claim's Enter; seen is 0 if it was admitted.
type entered struct{ token, seen interlock.Token }

// compete enters and, if admitted, tries to enter with the token before it.
func (s *fenceScene) compete(f driver.Fence, token interlock.Token) (entered, error) {
	enter := func(token interlock.Token) (seen interlock.Token, err error) {
		err = f.Enter(s.Context(), driver.Raise{Resource: resource, Token: token},
			put("last", token.String()), put("by/"+token.String(), token.String()))
		if stale, found := errors.AsType[*interlock.StaleTokenError](err); found {
			return stale.Seen, nil
		}
		return 0, err
	}
	seen, err := enter(token)
	if err != nil || seen != 0 {
		return entered{token, seen}, err
	}
	if late, err := enter(token - 1); err != nil || late < token {
		return entered{}, fmt.Errorf("an enter with the token before %d: seen %d, %w", token, late, errors.Join(errNotRefused, err))
	}
	return entered{token, 0}, nil
}

var errNotRefused = errors.New("not refused as it should be")

// mustNotGoBack reads the last writer, which must not be lower than before.
func (s *fenceScene) mustNotGoBack(before interlock.Token) interlock.Token {
	s.Helper()
	value, ok := s.data.Get(s.T, "last")
	if !ok && before == 0 {
		return 0
	}
	last, err := interlock.ParseToken(string(value))
	if err != nil || last < before {
		s.Fatalf("the last writer is %q (%v), before it was %d", value, err, before)
	}
	return last
}
