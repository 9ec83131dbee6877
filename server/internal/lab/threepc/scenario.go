package threepc

import (
	"errors"
	"fmt"
	"time"
)

// A Scenario is one run of a protocol in virtual time. The same scenario always runs
// the same way.
type Scenario struct {
	Protocol     Protocol
	Participants int    // 1 to 6
	Seed         uint64 // of delays and losses
	// Delay is the longest that a message takes, and a whole number of them what sites
	// wait before they take another one for crashed; 0 is 10 ms. Messages take any time
	// up to it, or just as long if Steady.
	Delay  time.Duration
	Steady bool
	Loss   float64 // the part of messages that is lost, from 0 to 1
	No     []Site  // who votes no
	// Crashes are at most one for each site; Cut is the only partition, nil for none.
	Crashes []Crash
	Cut     *Cut
	Log     bool // whether the run has one
}

// A Crash ends a site in front of one of its actions: every message that it receives,
// and every one that it sends, is one. What it has written stays, and that is done
// before anything is sent.
type Crash struct {
	Site   Site
	Action int           // from 1
	Back   time.Duration // after so long it restarts; 0 is never
}

// A Cut is a partition: what is sent between the two sides is lost.
type Cut struct {
	From time.Duration // since the start
	For  time.Duration // 0 is for good
	Side []Site        // one of the two; the others are the other one
}

// A Run is what came of a scenario.
type Run struct {
	Messages int      // sent, repetitions and answers included
	Writes   int      // of a site's phase, that its next message had to wait for
	Fates    []Fate   // of the coordinator and the participants
	Log      []string // of what happened and when, if it was asked for
	// early is how many actions each site came to in the first thirty delays, after
	// which there are only repetitions.
	early [maxSites]int
}

// A Fate is the outcome of a site.
type Fate struct {
	Name    string
	Phase   string        // committed, aborted, or where it stands
	Decided bool          // it is one of the first two
	Crashed bool          // and did not come back
	At      time.Duration // when it decided, since the start
	Waited  time.Duration // from its vote of yes to then, or to the end of the run
}

// Split says whether two sites have decided otherwise, crashed ones included.
func (r *Run) Split() bool { return r.has("committed") && r.has("aborted") }

// Committed says whether a site has committed.
func (r *Run) Committed() bool { return r.has("committed") }

func (r *Run) has(phase string) bool {
	for _, f := range r.Fates {
		if f.Phase == phase {
			return true
		}
	}
	return false
}

// Blocked is the names of those that live and have not decided when the run ends, two
// hundred delays after its start, or fifty after its last fault was repaired.
func (r *Run) Blocked() (names []string) {
	for _, f := range r.Fates {
		if !f.Decided && !f.Crashed {
			names = append(names, f.Name)
		}
	}
	return names
}

// Waited is the longest that a site which lives to the end waited for a decision once
// it had voted yes.
func (r *Run) Waited() (most time.Duration) {
	for _, f := range r.Fates {
		if !f.Crashed {
			most = max(most, f.Waited)
		}
	}
	return most
}

const defaultDelay = 10 * time.Millisecond

func (s *Scenario) shape() shape { return shape{s.Protocol, s.Participants} }

func (s *Scenario) check() error {
	sites := set(0)
	for i := range s.Participants + 1 {
		sites |= only(Site(i))
	}
	switch {
	case s.Protocol < TwoPhase || s.Protocol > Register:
		return fmt.Errorf("threepc: there is no %v", s.Protocol)
	case s.Participants < 1 || s.Participants > maxSites-2:
		return fmt.Errorf("threepc: a run has 1 to %d participants, not %d", maxSites-2, s.Participants)
	case s.Delay < 0 || s.Loss < 0 || s.Loss > 1:
		return fmt.Errorf("threepc: a delay of %v and a loss of %v", s.Delay, s.Loss)
	case s.Cut != nil && (s.Cut.From < 0 || s.Cut.For < 0):
		return fmt.Errorf("threepc: a partition from %v for %v", s.Cut.From, s.Cut.For)
	}
	crashed := set(0)
	for _, c := range s.Crashes {
		switch {
		case c.Site >= maxSites || !sites.has(c.Site) || crashed.has(c.Site):
			return fmt.Errorf("threepc: site %d is not there, or crashes twice", c.Site)
		case c.Action < 1 || c.Back < 0:
			return fmt.Errorf("threepc: a crash at action %d, for %v", c.Action, c.Back)
		case c.Back > 0 && s.Protocol == ThreePhase:
			return errors.New("threepc: sites of three-phase commit do not restart")
		}
		crashed |= only(c.Site)
	}
	return nil
}
