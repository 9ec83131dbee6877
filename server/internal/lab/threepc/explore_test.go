package threepc

import (
	"fmt"
	"strings"
	"testing"
)

// everyWorld explores a model, and requires in every world the rules of all protocols.
func everyWorld(t *testing.T, m Model, visit func(w *world, rests bool)) (worlds int) {
	t.Helper()
	x := &search{Model: m, seen: map[world]int32{}}
	x.walk(func(at int32, w *world, rests bool) {
		worlds++
		n := x.nodes[at]
		if n.parent >= 0 {
			if why := unsound(m, x.nodes[n.parent].world, *w, n.choice); why != "" {
				t.Fatalf("%s:\n%s", why, strings.Join(x.path(at), "\n"))
			}
		}
		visit(w, rests)
	})
	return worlds
}

// unsound returns the fault of a step, or "".
func unsound(m Model, before, after world, c choice) string {
	for s := range m.shape().sites() {
		was, now := before.sites[s].phase, after.sites[s].phase
		switch {
		case was.decided() && now != was:
			return fmt.Sprintf("site %d was %v and is %v", s, was, now)
		case was != working && now == working:
			return fmt.Sprintf("site %d has forgotten that it was %v", s, was)
		}
	}
	if c.kind == delivers && c.message.kind == prepare && !c.yes {
		for s := range m.shape().sites() {
			if after.sites[s].phase == committed {
				return "committed against a vote of no"
			}
		}
	}
	for s := range m.shape().sites() {
		if after.sites[s].phase != committed {
			continue
		}
		for p := 1; p <= m.Participants; p++ {
			if after.sites[p].phase == working {
				return "committed without a vote"
			}
		}
	}
	return ""
}

// TestTwoPhaseNeverSplits requires that neither two-phase commit nor the register splits,
// whatever the network does and whichever sites crash and restart.
func TestTwoPhaseNeverSplits(t *testing.T) {
	t.Parallel()
	for _, p := range []Protocol{TwoPhase, Register} {
		for _, m := range []Model{
			{Participants: 1, Crashes: 2, Asynchronous: true},
			{Participants: 2, Crashes: 2, Asynchronous: true},
			{Participants: 2, Crashes: 3},
			{Participants: 2, Crashes: 2, Partition: true},
			{Participants: 3, Crashes: 2},
			{Participants: 3, Partition: true},
		} {
			m.Protocol = p
			everyWorld(t, m, func(w *world, _ bool) {
				if w.split(m.shape().sites()) {
					t.Fatalf("%+v splits", m)
				}
			})
		}
	}
	m := Model{Protocol: TwoPhase, Participants: 3, Asynchronous: true}
	everyWorld(t, m, func(w *world, _ bool) {
		if w.split(m.shape().sites()) {
			t.Fatalf("%+v splits", m)
		}
	})
}

// TestTwoPhaseBlocks requires that exactly those sites block that voted yes while the
// coordinator is gone and no reachable site knows the decision.
func TestTwoPhaseBlocks(t *testing.T) {
	t.Parallel()
	for _, m := range []Model{
		{Protocol: TwoPhase, Participants: 2, Crashes: 3},
		{Protocol: TwoPhase, Participants: 3, Crashes: 2},
		{Protocol: TwoPhase, Participants: 3, Partition: true},
	} {
		blocked := 0
		everyWorld(t, m, func(w *world, rests bool) {
			waiting := w.undecided(m.shape())
			if !rests || waiting == 0 {
				return
			}
			blocked++
			waiting.each(func(s Site) {
				if w.sites[s].phase != prepared || !w.crashed.has(Coordinator) && !w.apart(s, Coordinator) {
					t.Fatalf("%+v: site %d is %v and waits: %+v", m, s, w.sites[s].phase, w)
				}
				for other := range Site(m.Participants + 1) {
					if w.sites[other].phase != prepared && !w.crashed.has(other) && !w.apart(s, other) {
						t.Fatalf("%+v: site %d waits, and %d is %v", m, s, other, w.sites[other].phase)
					}
				}
			})
		})
		if blocked == 0 {
			t.Errorf("%+v: no site blocks", m)
		}
	}
}

// TestThreePhaseHoldsWithoutPartitions requires that with bounded delays the live sites
// decide, and alike.
func TestThreePhaseHoldsWithoutPartitions(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		m := Model{Protocol: ThreePhase, Participants: n, Crashes: n + 1}
		everyWorld(t, m, func(w *world, rests bool) {
			if w.split(m.shape().sites()) || rests && w.undecided(m.shape()) != 0 {
				t.Fatalf("%+v: %+v", m, w)
			}
		})
	}
}

// TestRegisterBlocksOnlyWhoIsCutOff requires that the register blocks no other site.
func TestRegisterBlocksOnlyWhoIsCutOff(t *testing.T) {
	t.Parallel()
	for _, m := range []Model{
		{Protocol: Register, Participants: 3, Crashes: 4},
		{Protocol: Register, Participants: 2, Crashes: 2, Partition: true},
		{Protocol: Register, Participants: 3, Partition: true},
	} {
		everyWorld(t, m, func(w *world, rests bool) {
			if !rests {
				return
			}
			w.undecided(m.shape()).each(func(s Site) {
				if !w.apart(s, m.shape().register()) {
					t.Fatalf("%+v: site %d waits, and reaches the register: %+v", m, s, w)
				}
			})
		})
	}
}

// TestVotes requires that one no is enough, without a request to the register.
func TestVotes(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		run := Simulate(Scenario{Protocol: p, Participants: 3, No: []Site{2}, Log: true})
		if run.Committed() || len(run.Blocked()) > 0 || strings.Contains(strings.Join(run.Log, "\n"), "offer") {
			t.Errorf("%v: %+v", p, run)
		}
	}
}
