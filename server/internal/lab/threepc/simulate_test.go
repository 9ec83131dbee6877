package threepc

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustRun(t testing.TB, s Scenario) *Run {
	t.Helper()
	run, err := Simulate(s)
	if err != nil {
		t.Fatalf("%+v: %v", s, err)
	}
	return run
}

// TestMessages requires 4n messages, 6n, and 4n plus two for the register.
func TestMessages(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 6; n++ {
		for p, want := range map[Protocol]struct{ messages, writes int }{
			TwoPhase: {4 * n, 2*n + 1}, ThreePhase: {6 * n, 3*n + 2}, Register: {4*n + 2, 2*n + 1},
		} {
			for _, steady := range []bool{true, false} {
				run := mustRun(t, Scenario{Protocol: p, Participants: n, Steady: steady, Seed: 7})
				if run.Messages != want.messages || run.Writes != want.writes || len(run.Blocked()) > 0 || run.Split() || !run.Committed() {
					t.Errorf("%v of %d: %+v", p, n, run)
				}
			}
		}
	}
}

// TestCoordinatorCrash crashes the coordinator at each action, in many orders: two-phase
// commit blocks as long as it is gone, once all have voted; the others never block.
func TestCoordinatorCrash(t *testing.T) {
	t.Parallel()
	const n = 3
	for seed := range uint64(20) {
		for action := 1; action <= 6*n; action++ {
			crash := []Crash{{Site: Coordinator, Action: action}}
			for _, p := range []Protocol{ThreePhase, Register} {
				run := mustRun(t, Scenario{Protocol: p, Participants: n, Seed: seed, Crashes: crash})
				if run.Split() || len(run.Blocked()) > 0 || run.Waited() > 20*defaultDelay {
					t.Fatalf("%v, %d: %+v", p, action, run)
				}
			}
		}
		// It has all votes, and is about to tell the first.
		all := Scenario{Participants: n, Seed: seed, Steady: true, Crashes: []Crash{{Site: Coordinator, Action: 2*n + 1}}}
		run := mustRun(t, all)
		if !slices.Equal(run.Blocked(), []string{"P1", "P2", "P3"}) || run.Waited() < 190*defaultDelay {
			t.Fatalf("%+v", run)
		}
		all.Crashes[0].Back = time.Minute
		run = mustRun(t, all)
		if len(run.Blocked()) > 0 || !run.Committed() || run.Split() || run.Waited() < time.Minute || run.Waited() > time.Minute+30*defaultDelay {
			t.Fatalf("%+v", run)
		}
	}
}

// TestCrashesNeverSplit crashes any sites at any of their actions, in many orders. It
// also shows that sites wait long enough before they suspect others.
func TestCrashesNeverSplit(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		const runs = 700
		committed, blocked := 0, 0
		for seed := range uint64(runs) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := Scenario{Protocol: p, Participants: 2 + random.IntN(5), Seed: seed}
			for _, i := range random.Perm(s.Participants + 1)[:random.IntN(s.Participants+1)] {
				s.Crashes = append(s.Crashes, Crash{Site: Site(i), Action: 1 + random.IntN(4*s.Participants)})
			}
			run := mustRun(t, s)
			if run.Split() {
				t.Fatalf("%+v: %+v", s, run)
			}
			if run.Committed() {
				committed++
			}
			if len(run.Blocked()) > 0 {
				blocked++
			}
		}
		if (blocked > 0) != (p == TwoPhase) || committed < runs/8 || committed > runs*7/8 {
			t.Errorf("%v: %d committed, %d blocked", p, committed, blocked)
		}
	}
}

// TestPartitionsAndLosses requires that only three-phase commit splits. All sites of the
// others decide once the network is whole.
func TestPartitionsAndLosses(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		splits := 0
		for seed := range uint64(400) {
			random := rand.New(rand.NewPCG(seed, 2))
			s := Scenario{Protocol: p, Participants: 3, Seed: seed, Loss: random.Float64() / 4}
			kindsOfFault[3].spoil(&s, random)
			run := mustRun(t, s)
			if run.Split() {
				splits++
			} else if len(run.Blocked()) > 0 && s.Loss < 0.1 {
				t.Fatalf("%+v: %+v", s, run)
			}
		}
		if (splits > 0) != (p == ThreePhase) {
			t.Errorf("%v: %d splits", p, splits)
		}
	}
}

// TestCrashPointsOfTheReport requires that two-phase commit blocks from the last vote
// until the first site has the decision, and at no other crash of its coordinator.
func TestCrashPointsOfTheReport(t *testing.T) {
	t.Parallel()
	r := &Report{Participants: 3}
	if err := r.crashes(); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Crashes {
		want := []int(nil)
		if c.Protocol == TwoPhase && c.Sites == 1 {
			want = []int{4, 5, 6, 7}
		}
		if !slices.Equal(c.At, want) || c.Split > 0 || (c.Blocked > 0) != (c.Protocol == TwoPhase) || c.Points < 10 {
			t.Errorf("%+v", c)
		}
	}
	if back := r.Crashes[0].Back; back < BackAfter || back > BackAfter+30*defaultDelay {
		t.Errorf("they wait for %v for one that is gone for %v", back, BackAfter)
	}
}

// TestVotes requires that one no is enough, without a request to the register.
func TestVotes(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		run := mustRun(t, Scenario{Protocol: p, Participants: 3, No: []Site{2}, Log: true})
		if run.Committed() || len(run.Blocked()) > 0 || strings.Contains(strings.Join(run.Log, "\n"), "offer") {
			t.Errorf("%v: %+v", p, run)
		}
	}
}

// TestSameAgain requires that a scenario always gives the same run.
func TestSameAgain(t *testing.T) {
	t.Parallel()
	s := Scenario{Protocol: ThreePhase, Participants: 5, Seed: 42, Loss: 0.1, Log: true, Crashes: []Crash{{Site: 2, Action: 3}}}
	one, two := mustRun(t, s), mustRun(t, s)
	if !reflect.DeepEqual(one, two) || len(one.Log) < 20 {
		t.Fatalf("%+v\n%+v", one, two)
	}
	s.Seed++
	if other := mustRun(t, s); slices.Equal(one.Log, other.Log) {
		t.Fatal("the seed does nothing")
	}
}

func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []Scenario{
		{},
		{Participants: 7},
		{Protocol: 9, Participants: 2},
		{Participants: 2, Delay: -1},
		{Participants: 2, Loss: 1.5},
		{Participants: 2, Cut: &Cut{From: -1}},
		{Participants: 2, Crashes: []Crash{{Site: 3, Action: 1}}},
		{Participants: 2, Crashes: []Crash{{Site: 200, Action: 1}}},
		{Participants: 2, Crashes: []Crash{{Site: 1}}},
		{Participants: 2, Crashes: []Crash{{Site: 1, Action: 1}, {Site: 1, Action: 2}}},
		{Protocol: ThreePhase, Participants: 2, Crashes: []Crash{{Site: 1, Action: 1, Back: 1}}},
	} {
		if run, err := Simulate(s); err == nil {
			t.Errorf("%+v: %+v", s, run)
		}
	}
	for _, o := range []Options{{Participants: -1}, {Participants: 7}, {Runs: -1}} {
		if _, err := Compare(&o); err == nil {
			t.Errorf("%+v", o)
		}
	}
}
