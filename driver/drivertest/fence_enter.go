package drivertest

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
