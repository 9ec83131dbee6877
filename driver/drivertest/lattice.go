package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// LatticesHarness gives [RunLattices] access to one driver.Lattices and its store.
type LatticesHarness = StoreHarness[driver.Lattices]

// RunLattices runs the conformance suite of driver.Lattices: a store joins as
// driver.Lattice.Join does, and rejects stale tokens.
func RunLattices(t *testing.T, h LatticesHarness) {
	runStore(t, h, func(s *storeScene[driver.Lattices]) *latticeScene { return &latticeScene{s} }, []suiteTest[*latticeScene]{
		{"Joins", 0, testLatticeJoins},
		{"Removals", 0, testLatticeRemovals},
		{"Guard", 0, testLatticeGuard},
		{"BadInput", 0, testLatticeBadInput},
		{"Competition", 0, testLatticeCompetition},
		{"LostReplies", Servers | LostReplies | onPaths, testLatticeLostReplies},
		{"Killed", Servers | Durable, testLatticeKilled},
	})
}

type latticeScene struct{ *storeScene[driver.Lattices] }

func (s *latticeScene) merge(name string, delta driver.Lattice, guard *driver.Raise) {
	s.Helper()
	if err := s.store.Merge(s.Context(), name, delta, guard); err != nil {
		s.Fatalf("merge: %v", err)
	}
}

func (s *latticeScene) expect(name string, want driver.Lattice) {
	s.Helper()
	got, err := s.store.Load(s.Context(), name)
	if err != nil {
		s.Fatalf("load: %v", err)
	}
	if got, want := got.Clone(), want.Clone(); !reflect.DeepEqual(got, want) {
		s.Fatalf("%q is\n%v, want\n%v", name, got, want)
	}
}

// lattice returns a delta, with values that only a comparison of bytes orders correctly.
func lattice(random *rand.Rand) driver.Lattice {
	values := []string{"", "0", "00", "9", "a", "B", "é", "\x00", "\xff", "a\x00b", strings.Repeat("z", 300)}
	l := driver.Lattice{Max: map[string]string{}, Dots: map[driver.Dot]string{}, Seen: map[string]driver.Ranges{}}
	for range random.IntN(3) {
		l.Max[values[random.IntN(len(values))]] = values[random.IntN(len(values))]
	}
	for range random.IntN(4) {
		d := driver.Dot{Replica: []string{"eu", "us", "é 1"}[random.IntN(3)], N: 1 + random.Int64N(12)}
		first := max(1, d.N-random.Int64N(3))
		l.Seen[d.Replica] = l.Seen[d.Replica].Union(driver.Ranges{{First: first, Last: d.N}})
		if random.IntN(2) == 0 {
			l.Dots[d] = values[random.IntN(len(values))]
		}
	}
	return l
}

func testLatticeJoins(s *latticeScene) {
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 20 {
		name, want := fmt.Sprint(`it's "1"\, {x} é`, i), driver.Lattice{}
		s.expect(name, want)
		for range 15 {
			delta := lattice(random)
			s.merge(name, delta, nil)
			want.Join(delta)
			s.expect(name, want)
		}
		s.merge(name, want, nil) // a whole state is a delta
		s.expect(name, want)
	}
}

// testLatticeRemovals removes many additions by a delta that has seen more than are stored.
func testLatticeRemovals(s *latticeScene) {
	last := driver.Dot{Replica: "eu", N: driver.MaxDot}
	state := driver.Lattice{Dots: map[driver.Dot]string{last: "last", {Replica: "us", N: 4}: "other"},
		Seen: map[string]driver.Ranges{"eu": {{First: 1, Last: driver.MaxDot}}, "us": {{First: 2, Last: 4}}}}
	for n := int64(1); n <= 50; n++ {
		state.Dots[driver.Dot{Replica: "eu", N: n}] = "x"
	}
	s.merge("x", state, nil)
	all := driver.Lattice{Dots: map[driver.Dot]string{last: "last"}, Seen: map[string]driver.Ranges{"eu": {{First: 2, Last: driver.MaxDot}}}}
	s.merge("x", all, nil)
	state.Join(all)
	if len(state.Dots) != 3 {
		s.Fatalf("%d additions are left", len(state.Dots))
	}
	s.expect("x", state)
}

func testLatticeGuard(s *latticeScene) {
	raise := func(ahead int64) *driver.Raise {
		return &driver.Raise{Resource: "stock {x}", Token: s.token(ahead, 0), Source: "test"}
	}
	delta := func(value string) driver.Lattice { return driver.Lattice{Max: map[string]string{"f": value}} }
	s.merge("{x}", delta("1"), raise(0))
	s.merge("{x}", driver.Lattice{}, raise(2))
	var stale *interlock.StaleTokenError
	if err := s.store.Merge(s.Context(), "{x}", delta("2"), raise(1)); !errors.As(err, &stale) || stale.Seen != s.token(2, 0) {
		s.Fatalf("a stale token: %v", err)
	}
	s.expect("{x}", delta("1"))
	s.merge("{x}", delta("3"), raise(2))
	s.expect("{x}", delta("3"))
	s.mustFail(s.store.Merge(s.Context(), "{x}", delta("4"), &driver.Raise{Resource: "stock {x}"}), interlock.Bug, nil)
	s.mustFail(s.store.Merge(s.Context(), "{x}", delta("4"), raise(4*interlock.MaxAhead.Microseconds())), interlock.Definite, interlock.ErrImplausibleToken)
	s.expect("{x}", delta("3"))
}

func testLatticeBadInput(s *latticeScene) {
	for _, l := range []driver.Lattice{
		{Max: map[string]string{strings.Repeat("f", driver.MaxField+1): ""}},
		{Max: map[string]string{"f": strings.Repeat("v", 2*driver.MaxValue+1)}},
		{Dots: map[driver.Dot]string{{Replica: "eu", N: 1}: "unseen"}},
		{Seen: map[string]driver.Ranges{"": {{First: 1, Last: 1}}}},
		{Seen: map[string]driver.Ranges{"eu": {}}},
		{Seen: map[string]driver.Ranges{"eu": {{First: 0, Last: 1}}}},
		{Seen: map[string]driver.Ranges{"eu": {{First: 2, Last: 1}}}},
		{Seen: map[string]driver.Ranges{"eu": {{First: 1, Last: 2}, {First: 3, Last: 3}}}},
		{Seen: map[string]driver.Ranges{"eu": {{First: 1, Last: driver.MaxDot + 1}}}},
	} {
		s.mustFail(s.store.Merge(s.Context(), "k", l, nil), interlock.Bug, nil)
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		s.mustFail(s.store.Merge(s.Context(), name, driver.Lattice{}, nil), interlock.Bug, interlock.ErrName)
		_, err := s.store.Load(s.Context(), name)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
	}
	ctx, gone := endedContext(s.T)
	s.mustFail(s.store.Merge(ctx, "k", driver.Lattice{Max: map[string]string{"f": "1"}}, nil), interlock.Definite, gone)
	s.expect("k", driver.Lattice{})
}

// testLatticeCompetition checks that no delta of concurrent processes is lost.
func testLatticeCompetition(s *latticeScene) {
	var mu sync.Mutex
	want := driver.Lattice{}
	s.atOnce(4, func(process int, store driver.Lattices) error {
		random := rand.New(rand.NewPCG(7, uint64(process)))
		for range 25 {
			delta := lattice(random)
			if err := store.Merge(s.Context(), "k", delta, nil); err != nil {
				return err
			}
			mu.Lock()
			want.Join(delta)
			mu.Unlock()
		}
		return nil
	})
	s.expect("k", want)
}

// testLatticeLostReplies merges a delta again whose answer was lost.
func testLatticeLostReplies(s *latticeScene) {
	delta := driver.Lattice{Dots: map[driver.Dot]string{{Replica: "eu", N: 1}: "a"}, Seen: map[string]driver.Ranges{"eu": {{First: 1, Last: 1}}}}
	s.merge("k", driver.Lattice{}, nil)
	s.loseReply(func(ctx context.Context) error { return s.store.Merge(ctx, "k", delta, nil) })
	s.store = s.beside()
	s.merge("k", delta, nil)
	s.expect("k", delta)
}

// testLatticeKilled checks that merged deltas survive a kill of the server.
func testLatticeKilled(s *latticeScene) {
	delta := driver.Lattice{Max: map[string]string{"f": "1"}}
	s.merge("k", delta, nil)
	s.faults.Kill()
	s.faults.Restart()
	s.persist("load", func(ctx context.Context) error {
		_, err := s.store.Load(ctx, "k")
		return err
	})
	s.expect("k", delta)
}
