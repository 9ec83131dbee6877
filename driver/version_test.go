package driver

import (
	"slices"
	"testing"
)

// TestJudgeConverges: the final state depends neither on the order nor on the number of arrivals.
func TestJudgeConverges(t *testing.T) {
	at := func(version int64, tie string) Versioned { return Versioned{Stamp: Stamp{Version: version, Tie: tie}} }
	cancelled, deleted := at(3, "a"), at(3, "")
	cancelled.Terminal, cancelled.TerminalWins, deleted.Deleted = true, true, true
	for _, c := range []struct {
		states []Versioned
		last   Stamp
	}{
		{[]Versioned{at(1, "a"), at(2, "b"), at(2, "a"), deleted}, deleted.Stamp},
		{[]Versioned{at(1, "a"), at(2, "a"), cancelled, at(4, "b")}, cancelled.Stamp},
	} {
		n := len(c.states)
		for order := range n * n * n * n * n { // each state at least once, and one again
			var seen []int
			var stored Versioned
			for rest := order; len(seen) <= n; rest /= n {
				seen = append(seen, rest%n)
			}
			for _, i := range seen {
				if v := c.states[i]; v.Judge(stored) == VersionApplied {
					stored = v
				}
			}
			slices.Sort(seen)
			if len(slices.Compact(seen)) == n && stored.Stamp != c.last {
				t.Fatalf("order %d: %v remains, want %v", order, stored.Stamp, c.last)
			}
		}
	}
}
