package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
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

// testReplaceComparesAndSets checks that a state is replaced only under its own stamp,
// of which every byte counts.
func testReplaceComparesAndSets(s *versionsScene) {
	first, second := state(1<<53, "ab"), state(1<<53+1, "b")
	s.mustReplace(driver.Stamp{Version: 1}, second, driver.VersionStale, driver.Versioned{}) // a missing state is zero
	s.mustReplace(driver.Stamp{}, first, driver.VersionApplied, first)
	s.mustReplace(driver.Stamp{}, first, driver.VersionDuplicate, first)
	s.mustReplace(driver.Stamp{}, second, driver.VersionStale, first)
	for _, other := range []driver.Stamp{{Version: 1<<53 - 1, Tie: "ab"}, {Version: 1 << 53, Tie: "a"}, {Version: 1 << 53, Tie: "abc"},
		{Version: 1 << 53}, {Version: 1 << 53, Tie: "ab\x01"}, {Version: 1, Tie: "ab"}} {
		s.mustReplace(other, second, driver.VersionStale, first)
	}
	s.mustReplace(first.Stamp, second, driver.VersionApplied, second)
	s.mustReplace(first.Stamp, second, driver.VersionDuplicate, second)
	s.mustReplace(first.Stamp, state(1<<53+1, "c"), driver.VersionStale, second)
	end := terminal(state(1<<53+2, ""))
	s.mustReplace(second.Stamp, end, driver.VersionApplied, end)
	s.mustReplace(second.Stamp, state(1<<53+3, ""), driver.VersionTerminal, end)
}

// testReplaceLosesNoUpdate has writers in several processes add to a counter.
func testReplaceLosesNoUpdate(s *versionsScene) {
	const writers, each = 8, 10
	s.atOnce(writers, func(i int, store driver.Versions) error {
		for range each {
			if err := s.count(store, fmt.Sprint("writer ", i)); err != nil {
				return err
			}
		}
		return nil
	})
	v, err := s.store.Get(s.Context(), entity)
	if err != nil || len(v.Data) != writers*each || v.Stamp.Version != writers*each {
		s.Fatalf("%d of %d updates are left, at %v, %v", len(v.Data), writers*each, v.Stamp, err)
	}
}

// count adds one byte and repeats until it succeeds.
func (s *versionsScene) count(store driver.Versions, tie string) error {
	for {
		was, err := store.Get(s.Context(), entity)
		if err != nil {
			return err
		}
		next := driver.Versioned{Stamp: driver.Stamp{Version: was.Stamp.Version + 1, Tie: tie}, Data: append(was.Data, 'x')}
		switch outcome, _, err := store.Replace(s.Context(), entity, was.Stamp, next); {
		case err != nil:
			return err
		case outcome == driver.VersionApplied:
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// testStateDataIsData checks any bytes up to the limit, and that other states stay.
func testStateDataIsData(s *versionsScene) {
	long := bytes.Repeat([]byte("0123456789abcde\xff"), driver.MaxValue/16)
	for i, data := range []string{"", "x", "\x00\xff binary\r\n", "{\"a\": [1]}", "'; drop table x; --", string(long), "", "short again"} {
		v := driver.Versioned{Stamp: driver.Stamp{Version: int64(1 + i), Tie: "a\n \"'"}, Data: []byte(data)}
		s.mustApply(v, driver.VersionApplied, v)
		s.mustApply(v, driver.VersionDuplicate, v)
	}
	mine := state(20, "")
	s.mustApply(mine, driver.VersionApplied, mine)
	copy(mine.Data, "used")
	read, err := s.store.Get(s.Context(), entity)
	testbed.OK(s, err)
	copy(read.Data, "read")
	s.mustHave(entity, state(20, ""))
}

// testStateNamesAreData checks that each name has its own state. The versions fall, so a
// name that shared a state would be stale.
func testStateNamesAreData(s *versionsScene) {
	states := map[string]driver.Versioned{}
	taken := s.eachName(func(i int, name string) error {
		v := state(int64(1000-i), name[:1])
		if v.Check() != nil {
			v = state(int64(1000-i), "")
		}
		states[name] = v
		_, _, err := s.store.Apply(s.Context(), name, v)
		return err
	})
	for _, name := range taken {
		s.mustHave(name, states[name])
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		_, _, err := s.store.Apply(s.Context(), name, state(1, ""))
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, _, err = s.store.Replace(s.Context(), name, driver.Stamp{}, state(1, ""))
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		_, err = s.store.Get(s.Context(), name)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
}

// testStateThatCannotBeIsABug checks that invalid states are a Bug and change nothing.
func testStateThatCannotBeIsABug(s *versionsScene) {
	s.mustApply(state(5, ""), driver.VersionApplied, state(5, ""))
	for _, bad := range []driver.Versioned{
		{}, state(0, "a"), state(-1, ""),
		state(9, strings.Repeat("x", driver.MaxTie+1)), state(9, "a\x00b"), state(9, "\xff"),
		{Stamp: driver.Stamp{Version: 9}, Data: make([]byte, driver.MaxValue+1)},
		{Stamp: driver.Stamp{Version: 9}, Deleted: true, Data: []byte("x")},
	} {
		_, _, err := s.store.Apply(s.Context(), entity, bad)
		s.mustFail(err, interlock.Bug, nil)
		_, _, err = s.store.Replace(s.Context(), entity, driver.Stamp{}, bad)
		s.mustFail(err, interlock.Bug, nil)
	}
	for _, old := range []driver.Stamp{{Version: 6}, {Version: 7}, {Version: 6, Tie: "a"}} {
		_, _, err := s.store.Replace(s.Context(), entity, old, state(6, ""))
		s.mustFail(err, interlock.Bug, nil)
	}
	s.mustHave(entity, state(5, ""))
}

// testVersionsContextAlreadyEnded checks that the cause is returned and nothing was done.
func testVersionsContextAlreadyEnded(s *versionsScene) {
	ctx, cause := endedContext(s.T)
	_, _, err := s.store.Apply(ctx, entity, state(1, ""))
	s.mustFail(err, interlock.Definite, cause)
	_, _, err = s.store.Replace(ctx, entity, driver.Stamp{}, state(1, ""))
	s.mustFail(err, interlock.Definite, cause)
	_, err = s.store.Get(ctx, entity)
	s.mustFail(err, interlock.Definite, cause)
	s.mustHave(entity, driver.Versioned{})
}

// write is Apply or Replace.
type write func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error)

// testLostReplyToApply checks that the outcome is unknown and a repetition converges.
func testLostReplyToApply(s *versionsScene) {
	s.loseReplyTo(state(2, "a"), func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error) {
		return s.store.Apply(ctx, entity, state(2, "a"))
	})
	s.mustApply(state(1, "z"), driver.VersionStale, state(2, "a"))
}

// testLostReplyToReplace checks that the repetition finds its own state.
func testLostReplyToReplace(s *versionsScene) {
	s.loseReplyTo(state(2, "a"), func(ctx context.Context) (driver.VersionOutcome, driver.Versioned, error) {
		return s.store.Replace(ctx, entity, driver.Stamp{Version: 1}, state(2, "a"))
	})
}

func (s *versionsScene) loseReplyTo(want driver.Versioned, do write) {
	s.Helper()
	s.mustApply(state(1, ""), driver.VersionApplied, state(1, "")) // the connection is open
	s.mustReplace(driver.Stamp{}, state(2, ""), driver.VersionStale, state(1, ""))
	s.loseReply(func(ctx context.Context) error {
		_, _, err := do(ctx)
		return err
	})
	beside := s.beside()
	s.persistUntil("the state that was written without a reply", func(ctx context.Context) (bool, error) {
		v, err := beside.Get(ctx, entity)
		return sameState(v, want), err
	})
	s.persist("repeat it", func(ctx context.Context) error {
		outcome, stored, err := do(ctx)
		if err == nil && (outcome != driver.VersionDuplicate || !sameState(stored, want)) {
			s.Fatalf("the repetition: %v, %+v", outcome, stored)
		}
		return err
	})
}

// testVersionsOverARestart checks that a durable server keeps all stamps, including those
// of tombstones, when its process is killed.
func testVersionsOverARestart(s *versionsScene) {
	s.mustApply(tombstone(5), driver.VersionApplied, tombstone(5))
	s.restartAround(func(ctx context.Context) error {
		_, _, err := s.store.Apply(ctx, entity, state(6, ""))
		return err
	})
	s.persist("apply after the restart", func(ctx context.Context) error {
		outcome, _, err := s.store.Apply(ctx, entity, state(4, ""))
		if err == nil && outcome != driver.VersionStale {
			s.Fatalf("a restart forgot a tombstone: %v", outcome)
		}
		return err
	})
}
