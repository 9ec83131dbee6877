package drivertest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// ValuesHarness tells [RunValues] how to reach one driver.Values and its store.
type ValuesHarness struct {
	// Bubble runs one test; nil calls test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares an empty store for one test, whose clock is that of the
	// test give or take a few minutes; it cleans up by t.Cleanup. A test that
	// kills or pauses the server asks for one of its own by exclusive.
	Start func(t *testing.T, exclusive bool) ValuesBackend
	// Without says Servers for a store that has no server to break, LostReplies
	// for one that cannot lose them, and Durable for one that forgets. Whatever
	// it does not name must be there.
	Without Ability
}

// ValuesBackend is one running store.
type ValuesBackend interface {
	// Open opens the values as a further process would, on the same store, by
	// way of a path of its own that Faults can break.
	Open(t *testing.T) (driver.Values, error)
	// Beside opens them past every fault of the paths.
	Beside(t *testing.T) (driver.Values, error)
	// Faults is nil where there is no server to break (Without Servers). Its
	// DropReplies, if it is a ReplyDropper, may wait for the next request that
	// changes something.
	Faults() Faults
}

// RunValues runs the suite of driver.Values.
func RunValues(t *testing.T, h ValuesHarness) {
	for _, c := range []struct {
		name  string
		needs Ability
		test  func(*valuesScene)
	}{
		// What is stored.
		{"ValueOfNothing", 0, testValueOfNothing},
		{"ValuesAreOrderedByToken", 0, testValuesAreOrderedByToken},
		{"ValueTells", 0, testValueTells},
		{"ValueDataIsData", 0, testValueDataIsData},
		{"ValueNamesAreData", 0, testValueNamesAreData},
		{"ValueRefusesImplausibleToken", 0, testValueRefusesImplausibleToken},
		{"ValueWithoutTokenIsABug", 0, testValueWithoutTokenIsABug},
		{"ValueCompetition", 0, testValueCompetition},
		{"ValuesContextAlreadyEnded", 0, testValuesContextAlreadyEnded},
		{"LostReplyToPut", Servers | LostReplies | onPaths, testLostReplyToPut},
		{"ValuesOverARestart", Servers, testValuesOverARestart},
		// What is seen.
		{"WatchValueBegins", 0, testWatchValueBegins},
		{"WatchValueSeesEqualTokens", 0, testWatchValueSeesEqualTokens},
		{"WatchValueKeepsToItsName", 0, testWatchValueKeepsToItsName},
		{"WatchValueOfManyWriters", 0, testWatchValueOfManyWriters},
		{"WatchValueBySlowReader", 0, testWatchValueBySlowReader},
		{"WatchValueEnds", 0, testWatchValueEnds},
		{"WatchValueOverACut", Servers | onPaths, testWatchValueOverACut},
		{"WatchValueOverAKilledServer", Servers, testWatchValueOverAKilledServer},
		{"WatchValueOverAPausedServer", Servers, testWatchValueOverAPausedServer},
	} {
		if c.needs&h.Without != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h.run(t, c.needs, c.test)
		})
	}
}

func (h ValuesHarness) run(t *testing.T, needs Ability, test func(*valuesScene)) {
	bubble := h.Bubble
	if bubble == nil {
		bubble = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	bubble(t, func(t *testing.T) {
		b := h.Start(t, needs&(Servers|onPaths) == Servers)
		s := &valuesScene{T: t, backend: b, faults: b.Faults(), start: interlock.CounterAt(time.Now()),
			durable: h.Without&Durable == 0}
		_, drops := s.faults.(ReplyDropper)
		if needs&Servers != 0 && s.faults == nil || needs&LostReplies != 0 && !drops {
			t.Fatal("the harness lacks what this test needs, and Without does not say so")
		}
		s.values = s.open()
		test(s)
	})
}

// valueName is the name that most tests use.
const valueName = "config/limits"

// valuesScene is one test with its store and a first opening of it.
type valuesScene struct {
	*testing.T
	backend ValuesBackend
	faults  Faults
	values  driver.Values
	start   int64 // the counter of the present time
	durable bool
}

func (s *valuesScene) open() driver.Values {
	s.Helper()
	v, err := s.backend.Open(s.T)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	return v
}

// token is one whose counter is so far from that of the present time.
func (s *valuesScene) token(ahead int64, sub int) interlock.Token {
	return newToken(s.T, s.start+ahead, sub)
}

func (s *valuesScene) put(token interlock.Token, data string) error {
	return s.values.Put(s.Context(), valueName, driver.Value{Data: []byte(data), Token: token})
}

func (s *valuesScene) mustPut(token interlock.Token, data string) {
	s.Helper()
	if err := s.put(token, data); err != nil {
		s.Fatalf("put %q with %d: %v", data, token, err)
	}
}

func (s *valuesScene) get(v driver.Values, name string) driver.Value {
	s.Helper()
	value, err := v.Get(s.Context(), name)
	if err != nil {
		s.Fatalf("get %q: %v", name, err)
	}
	return value
}

func (s *valuesScene) mustHave(v driver.Values, name string, token interlock.Token, data string) {
	s.Helper()
	if value := s.get(v, name); value.Token != token || !bytes.Equal(value.Data, []byte(data)) {
		s.Fatalf("%q is %.200q with %d, want %.200q with %d", name, value.Data, value.Token, data, token)
	}
}

// mustBeStale requires a refusal that tells both tokens.
func (s *valuesScene) mustBeStale(err error, seen, got interlock.Token) {
	s.Helper()
	s.mustFail(err, interlock.Definite, interlock.ErrStaleToken)
	var stale *interlock.StaleTokenError
	if !errors.As(err, &stale) || *stale != (interlock.StaleTokenError{Resource: valueName, Seen: seen, Got: got}) {
		s.Fatalf("the refusal tells %+v, want %q, %d seen, %d got", stale, valueName, seen, got)
	}
}

// mustFail requires an error of a kind that is also another; nil is any.
func (s *valuesScene) mustFail(err error, kind interlock.ErrorKind, is error) {
	s.Helper()
	if err == nil || interlock.Kind(err) != kind || is != nil && !errors.Is(err, is) {
		s.Fatalf("got %v (%v), want an error of kind %v (%v)", err, interlock.Kind(err), kind, is)
	}
}

// persist repeats what may be repeated, as the portable types do.
func (s *valuesScene) persist(what string, try func(context.Context) error) {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.Context(), 2*time.Second)
		err := try(ctx)
		cancel()
		kind := interlock.Kind(err)
		switch {
		case err == nil:
			return
		case kind != interlock.Uncertain && kind != interlock.Retryable:
			s.Fatalf("%s: %v", what, err)
		case time.Now().After(end):
			s.Fatalf("%s: still no outcome after %v: %v", what, patience, err)
		}
	}
}

// persistPut repeats a Put until it is done.
func (s *valuesScene) persistPut(token interlock.Token, data string) {
	s.Helper()
	v := s.open()
	s.persist("put "+data, func(ctx context.Context) error {
		return v.Put(ctx, valueName, driver.Value{Data: []byte(data), Token: token})
	})
}
