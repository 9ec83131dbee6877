package drivertest

import (
	"bytes"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

// VersionsHarness gives [RunVersions] access to one driver.Versions and its
// store.
type VersionsHarness = StoreHarness[driver.Versions]

// VersionsBackend is one running store of states.
type VersionsBackend = StoreBackend[driver.Versions]

// RunVersions runs the conformance suite of driver.Versions.
func RunVersions(t *testing.T, h VersionsHarness) {
	runStore(t, h, func(s *storeScene[driver.Versions]) *versionsScene { return &versionsScene{storeScene: s} }, []suiteTest[*versionsScene]{
		// Apply.
		{"StatesAreOrderedByStamp", 0, testStatesAreOrderedByStamp},
		{"StatesAreJudgedAsSpecified", 0, testStatesAreJudgedAsSpecified},
		{"StateCompetition", 0, testStateCompetition},
		// Replace.
		{"ReplaceComparesAndSets", 0, testReplaceComparesAndSets},
		{"ReplaceLosesNoUpdate", 0, testReplaceLosesNoUpdate},
		// Data, contexts and faults.
		{"StateDataIsData", 0, testStateDataIsData},
		{"StateNamesAreData", 0, testStateNamesAreData},
		{"StateThatCannotBeIsABug", 0, testStateThatCannotBeIsABug},
		{"VersionsContextAlreadyEnded", 0, testVersionsContextAlreadyEnded},
		{"LostReplyToApply", Servers | LostReplies | onPaths, testLostReplyToApply},
		{"LostReplyToReplace", Servers | LostReplies | onPaths, testLostReplyToReplace},
		{"VersionsOverARestart", Servers | Durable, testVersionsOverARestart},
	})
}

// entity is the name that most tests use.
const entity = "order/42"

// versionsScene is one test with its store and a first opening of it.
type versionsScene struct{ *storeScene[driver.Versions] }

// state returns a state whose data is derived from its stamp.
func state(version int64, tie string) driver.Versioned {
	s := driver.Stamp{Version: version, Tie: tie}
	return driver.Versioned{Stamp: s, Data: []byte(s.String())}
}

func tombstone(version int64) driver.Versioned {
	return driver.Versioned{Stamp: driver.Stamp{Version: version}, Deleted: true}
}

func terminal(v driver.Versioned) driver.Versioned {
	v.Terminal = true
	return v
}

// mustApply requires an outcome, and that the stored state is returned and kept.
func (s *versionsScene) mustApply(v driver.Versioned, want driver.VersionOutcome, stored driver.Versioned) {
	s.Helper()
	got, told, err := s.store.Apply(s.Context(), entity, v)
	if err != nil || got != want || told.TerminalWins {
		s.Fatalf("apply %+v: %v, %v; want %v", v, got, err, want)
	}
	s.mustBe(told, stored)
	s.mustHave(entity, stored)
}

// mustReplace is mustApply for Replace.
func (s *versionsScene) mustReplace(old driver.Stamp, v driver.Versioned, want driver.VersionOutcome, stored driver.Versioned) {
	s.Helper()
	got, told, err := s.store.Replace(s.Context(), entity, old, v)
	if err != nil || got != want {
		s.Fatalf("replace %v by %+v: %v, %v; want %v", old, v, got, err, want)
	}
	s.mustBe(told, stored)
	s.mustHave(entity, stored)
}

func (s *versionsScene) mustHave(name string, want driver.Versioned) {
	s.Helper()
	got, err := s.store.Get(s.Context(), name)
	if err != nil {
		s.Fatalf("get %q: %v", name, err)
	}
	s.mustBe(got, want)
}

func (s *versionsScene) mustBe(got, want driver.Versioned) {
	s.Helper()
	if !sameState(got, want) {
		s.Fatalf("the state is %.200v, want %.200v", got, want)
	}
}

func sameState(a, b driver.Versioned) bool {
	return a.Stamp == b.Stamp && a.Deleted == b.Deleted && a.Terminal == b.Terminal && bytes.Equal(a.Data, b.Data)
}
