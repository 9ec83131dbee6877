package drivertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

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
