package driver

import (
	"slices"
	"testing"
)

// TestJudge states the rule in examples.
func TestJudge(t *testing.T) {
	plain := func(version int64, tie string) Versioned { return Versioned{Stamp: Stamp{Version: version, Tie: tie}} }
	terminal := func(version int64, tie string) Versioned { v := plain(version, tie); v.Terminal = true; return v }
	wins := func(version int64, tie string) Versioned {
		v := terminal(version, tie)
		v.TerminalWins = true
		return v
	}
	for i, c := range []struct {
		v, stored Versioned
		want      VersionOutcome
	}{
		{plain(1, ""), Versioned{}, VersionApplied},
		{plain(6, ""), plain(5, ""), VersionApplied},
		{plain(5, ""), plain(5, ""), VersionDuplicate},
		{plain(4, "z"), plain(5, ""), VersionStale},
		{plain(5, "b"), plain(5, "a"), VersionApplied},
		{plain(5, "B"), plain(5, "a"), VersionStale},
		{terminal(5, "m"), plain(9, ""), VersionStale},
		{wins(5, "m"), plain(9, ""), VersionApplied},
		{wins(9, ""), plain(9, ""), VersionDuplicate},
		{plain(9, ""), terminal(5, "m"), VersionTerminal},
		{plain(5, "n"), terminal(5, "m"), VersionTerminal},
		{plain(5, "l"), terminal(5, "m"), VersionStale},
		{wins(10, ""), terminal(5, "m"), VersionTerminal},
		{wins(4, ""), terminal(5, "m"), VersionStale},
	} {
		if got := c.v.Judge(c.stored); got != c.want {
			t.Errorf("case %d: %+v over %+v: %v, want %v", i, c.v, c.stored, got, c.want)
		}
	}
}

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
