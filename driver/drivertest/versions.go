package drivertest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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

// testStatesAreOrderedByStamp includes versions that a float cannot represent, and ties
// whose order as bytes differs from their alphabetical order.
func testStatesAreOrderedByStamp(s *versionsScene) {
	const beyond = 1 << 53
	longest := strings.Repeat("z", driver.MaxTie)
	var stored driver.Versioned
	for _, step := range []struct {
		version int64
		tie     string
		want    driver.VersionOutcome
	}{
		{1, "", driver.VersionApplied},
		{1, "", driver.VersionDuplicate},
		{9, "b", driver.VersionApplied},
		{10, "a", driver.VersionApplied}, // more digits
		{9, "c", driver.VersionStale},
		{10, "B", driver.VersionStale}, // upper case is below lower case
		{10, "", driver.VersionStale},
		{10, "a b", driver.VersionApplied},
		{10, "a", driver.VersionStale}, // a prefix is older
		{10, "a\x01", driver.VersionStale},
		{10, "a\x7f", driver.VersionApplied},
		{10, "z", driver.VersionApplied},
		{10, "é", driver.VersionApplied}, // its bytes are higher
		{10, "zz", driver.VersionStale},
		{10, longest, driver.VersionStale},
		{11, longest, driver.VersionApplied},
		{11, longest, driver.VersionDuplicate},
		{11, longest[1:], driver.VersionStale},
		{beyond, "", driver.VersionApplied},
		{beyond + 1, "", driver.VersionApplied}, // the same float
		{beyond, "", driver.VersionStale},
		{beyond + 1, "", driver.VersionDuplicate},
		{math.MaxInt64 - 1, "x", driver.VersionApplied},
		{math.MaxInt64, "", driver.VersionApplied},
		{math.MaxInt64 - 1, "y", driver.VersionStale},
	} {
		v := state(step.version, step.tie)
		if step.want == driver.VersionApplied {
			stored = v
		}
		s.mustApply(v, step.want, stored)
	}
}

// someState returns one of a few states, so that all relations of two are frequent.
func someState(r *rand.Rand) driver.Versioned {
	v := state(1+r.Int64N(4), []string{"", "a", "ab"}[r.IntN(3)])
	if r.IntN(4) == 0 {
		v.Deleted, v.Data = true, nil
	}
	v.Terminal, v.TerminalWins = r.IntN(8) == 0, r.IntN(2) == 0
	return v
}

// testStatesAreJudgedAsSpecified makes many short histories of entities. Each step must
// have the outcome that driver.Versioned specifies.
func testStatesAreJudgedAsSpecified(s *versionsScene) {
	r := rand.New(rand.NewPCG(3, 14))
	for life := range 60 {
		name, stored := fmt.Sprint("entity ", life), driver.Versioned{}
		for range 8 {
			v, old := someState(r), someState(r).Stamp
			if r.IntN(2) == 0 {
				old = stored.Stamp
			}
			want := v.Judge(stored)
			do := func() (driver.VersionOutcome, driver.Versioned, error) {
				return s.store.Apply(s.Context(), name, v)
			}
			if v.Stamp.Compare(old) > 0 && r.IntN(2) == 0 {
				want = v.JudgeReplace(old, stored)
				do = func() (driver.VersionOutcome, driver.Versioned, error) {
					return s.store.Replace(s.Context(), name, old, v)
				}
			}
			before := stored
			if want == driver.VersionApplied {
				stored = v
			}
			if got, told, err := do(); err != nil || got != want || !sameState(told, stored) {
				s.Fatalf("%+v where %+v is, old %v: %v, %+v, %v; want %v", v, before, old, got, told, err, want)
			}
		}
		s.mustHave(name, stored)
	}
}

// testStateCompetition has several processes apply each state twice, concurrently. The newest
// remains, each is applied at most once, and readers never get an older state.
func testStateCompetition(s *versionsScene) {
	const states = 60
	applied := make([][]driver.Stamp, 6)
	var last driver.Stamp
	readUntil(func() {
		s.atOnce(len(applied), func(lane int, store driver.Versions) error {
			r := rand.New(rand.NewPCG(7, uint64(lane/2))) // two lanes apply the same states
			for range states {
				v := state(1+r.Int64N(40), fmt.Sprint(r.IntN(3)))
				outcome, _, err := store.Apply(s.Context(), entity, v)
				if err != nil {
					return err
				}
				if outcome == driver.VersionApplied {
					applied[lane] = append(applied[lane], v.Stamp)
				}
			}
			return nil
		})
	}, func() {
		v, err := s.store.Get(s.Context(), entity)
		if err != nil || v.Stamp.Compare(last) < 0 || v.Stamp.Version > 0 && string(v.Data) != v.Stamp.String() {
			s.Fatalf("%+v was read after %v, %v", v, last, err)
		}
		last = v.Stamp
	})
	all := slices.Concat(applied...)
	slices.SortFunc(all, driver.Stamp.Compare)
	if once := slices.Compact(slices.Clone(all)); len(once) != len(all) || len(all) == 0 {
		s.Fatalf("%d states were applied %d times", len(once), len(all))
	}
	newest := all[len(all)-1]
	s.mustHave(entity, state(newest.Version, newest.Tie))
}
