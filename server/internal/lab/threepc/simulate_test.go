package threepc

import (
	"strings"
	"testing"
)

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
