package threepc

import (
	"strings"
	"testing"
)

// TestVotes requires that one no is enough, without a request to the register.
func TestVotes(t *testing.T) {
	t.Parallel()
	for _, p := range Protocols {
		run, err := Simulate(Scenario{Protocol: p, Participants: 3, No: []Site{2}, Log: true})
		if err != nil || run.Committed() || len(run.Blocked()) > 0 || strings.Contains(strings.Join(run.Log, "\n"), "offer") {
			t.Errorf("%v: %+v, %v", p, run, err)
		}
	}
}

func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []Scenario{
		{},
		{Participants: 7},
		{Protocol: 9, Participants: 2},
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
}
