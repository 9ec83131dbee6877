package drivertest

import (
	"bytes"
	"context"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// ValuesHarness gives [RunValues] access to one driver.Values and its store.
type ValuesHarness = StoreHarness[driver.Values]

// ValuesBackend is one running store of values.
type ValuesBackend = StoreBackend[driver.Values]

// RunValues runs the conformance suite of driver.Values.
func RunValues(t *testing.T, h ValuesHarness) {
	runStore(t, h, func(s *storeScene[driver.Values]) *valuesScene { return &valuesScene{storeScene: s} }, []suiteTest[*valuesScene]{
		// Storing.
		{"ValuesAreOrderedByToken", 0, testValuesAreOrderedByToken},
		{"ValueHasSourceAndTime", 0, testValueHasSourceAndTime},
		{"ValueDataIsData", 0, testValueDataIsData},
		{"ValueNamesAreData", 0, testValueNamesAreData},
		{"ValueRefusesImplausibleToken", 0, testValueRefusesImplausibleToken},
		{"ValueWithoutTokenIsABug", 0, testValueWithoutTokenIsABug},
		{"ValueCompetition", 0, testValueCompetition},
		{"ValuesContextAlreadyEnded", 0, testValuesContextAlreadyEnded},
		{"LostReplyToPut", Servers | LostReplies | onPaths, testLostReplyToPut},
		{"ValuesOverARestart", Servers, testValuesOverARestart},
		// Watching.
		{"WatchValueBegins", 0, testWatchValueBegins},
		{"WatchValueSeesEqualTokens", 0, testWatchValueSeesEqualTokens},
		{"WatchValueKeepsToItsName", 0, testWatchValueKeepsToItsName},
		{"WatchValueOfManyWriters", 0, testWatchValueOfManyWriters},
		{"WatchValueBySlowReader", 0, testWatchValueBySlowReader},
		{"WatchValueEnds", 0, testWatchValueEnds},
		{"WatchValueOverACut", Servers | onPaths, testWatchValueOverACut},
		{"WatchValueOverAKilledServer", Servers, testWatchValueOverAKilledServer},
	})
}

// valueName is the name that most tests use.
const valueName = "config/limits"

// valuesScene is one test with its store and a first opening of it.
type valuesScene struct {
	*storeScene[driver.Values]
}

func (s *valuesScene) put(token interlock.Token, data string) error {
	return s.store.Put(s.Context(), valueName, driver.Value{Data: []byte(data), Token: token})
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

// persistPut repeats a Put until it succeeds.
func (s *valuesScene) persistPut(token interlock.Token, data string) {
	s.Helper()
	v := s.open()
	s.persist("put "+data, func(ctx context.Context) error {
		return v.Put(ctx, valueName, driver.Value{Data: []byte(data), Token: token})
	})
}
