package threepc

import (
	"fmt"
	"slices"
	"time"
)

// A Scenario is one run of a protocol in virtual time. A scenario always gives the same run.
type Scenario struct {
	Protocol     Protocol
	Participants int     // 1 to 6
	Seed         uint64  // of delays and losses
	Steady       bool    // each message takes delay, else any time up to it
	Loss         float64 // fraction of messages that are lost, 0 to 1
	No           []Site  // sites that vote no
	// Crashes are at most one per site; Cut is the only partition, nil for none.
	Crashes []Crash
	Cut     *Cut
	Log     bool // whether the run has one
}

// A Crash ends a site before one of its actions. Each message that it receives or sends is an
// action. What it has written stays, and it writes before it sends.
type Crash struct {
	Site   Site
	Action int           // from 1
	Back   time.Duration // time until it restarts; 0 is never, as for ThreePhase
}

// A Cut is a partition: messages between the two sides are lost.
type Cut struct {
	From time.Duration // since the start
	For  time.Duration // 0 is forever
	Side []Site        // one side; all other sites are the other
}

// A Run is the result of a scenario.
type Run struct {
	Messages int      // sent, including repetitions and answers
	Writes   int      // of a site's phase, before its next message
	Fates    []Fate   // of the coordinator and the participants
	Log      []string // events with their times, if Scenario.Log is set
	// early is the number of actions of each site in the first thirty delays; later ones are
	// repetitions.
	early [maxSites]int
}

// A Fate is the outcome of a site.
type Fate struct {
	Name    string
	Phase   string        // committed, aborted, or an earlier one
	Decided bool          // it is one of the first two
	Crashed bool          // and did not restart
	At      time.Duration // when it decided, since the start
	Waited  time.Duration // from its vote of yes to At, or to the end of the run
}

// Split reports whether two sites have decided differently, including crashed ones.
func (r *Run) Split() bool { return r.has("committed") && r.has("aborted") }

// Committed reports whether a site has committed.
func (r *Run) Committed() bool { return r.has("committed") }

func (r *Run) has(phase string) bool {
	for _, f := range r.Fates {
		if f.Phase == phase {
			return true
		}
	}
	return false
}

// Blocked returns the live sites without a decision at the end of the run. The run ends two
// hundred delays after its start, or fifty after its last fault was repaired.
func (r *Run) Blocked() (names []string) {
	for _, f := range r.Fates {
		if !f.Decided && !f.Crashed {
			names = append(names, f.Name)
		}
	}
	return names
}

// Waited returns the longest wait for a decision after a vote of yes, of sites that live to the
// end.
func (r *Run) Waited() (most time.Duration) {
	for _, f := range r.Fates {
		if !f.Crashed {
			most = max(most, f.Waited)
		}
	}
	return most
}

// delay is the longest delay of a message. Timeouts are multiples of it.
const delay = 10 * time.Millisecond

func (s *Scenario) shape() shape { return shape{s.Protocol, s.Participants} }

// path returns the schedule that leads to a world, a line for each step; nil for
// none.
func (x *search) path(at int32) (lines []string) {
	for ; at >= 0; at = x.nodes[at].parent {
		n := x.nodes[at]
		before := world{}
		if n.parent >= 0 {
			before = x.nodes[n.parent].world
		}
		lines = append(lines, x.line(n.choice, &before, &n.world))
	}
	slices.Reverse(lines)
	return lines
}

// line describes the effect of a choice.
func (x *search) line(c choice, before, after *world) string {
	sh := x.shape()
	me := c.actor()
	text := ""
	switch c.kind {
	case begins:
		text = "C begins"
	case delivers:
		text = fmt.Sprintf("%s receives %s from %s", sh.name(me), c.message.kind, sh.name(c.message.from))
	case suspects:
		text = fmt.Sprintf("%s hears nothing from %s", sh.name(me), sh.name(c.of))
	case crashes:
		return sh.name(me) + " crashes"
	case restarts:
		text = sh.name(me) + " crashes and restarts"
	case cuts:
		rest := set(1<<sh.sites()-1) &^ c.side
		return fmt.Sprintf("the network falls apart: %s | %s", sh.names(rest), sh.names(c.side))
	}
	if now, was := after.sites[me].phase, before.sites[me].phase; now != was {
		text += ", is " + now.String()
	}
	_, sent := x.after(*before, c)
	return text + telling(sh, c, sent)
}

// telling describes the messages of a site, and a crash between them.
func telling(sh shape, c choice, sent []message) (text string) {
	to := map[kind]set{}
	var order []kind
	for _, a := range sent {
		if c.crashes && !c.told.has(a.to) || a.kind == done {
			continue
		}
		if to[a.kind] == 0 {
			order = append(order, a.kind)
		}
		to[a.kind] |= only(a.to)
	}
	for _, k := range order {
		text += fmt.Sprintf(", sends %s to %s", k, sh.names(to[k]))
	}
	if c.crashes {
		text += ", and crashes"
	}
	return text
}

// CrashPoints is the result of a crash at each action of a site, or of every two.
type CrashPoints struct {
	Protocol Protocol      `json:"protocol"`
	Sites    int           `json:"sites"`        // number of crashing sites: the coordinator, or any two
	Points   int           `json:"points"`       // runs, one for each action or pair of them in the first thirty delays
	Blocked  int           `json:"blocked"`      // of these, a live site never decides
	At       []int         `json:"at,omitempty"` // the actions of the coordinator at which sites block, if it alone crashes
	Split    int           `json:"split"`        // two sites decide differently
	Waited   time.Duration `json:"waited_ns"`    // the longest from a vote to a decision, where all decide
	Back     time.Duration `json:"back_ns"`      // the same, if the crashed site restarts after BackAfter; 0 if it cannot
}

// BackAfter is the time until a crashed coordinator restarts.
const BackAfter = 10 * time.Second

// crashes crashes a site, and then any two, at each of their actions.
func (r *Report) crashes() {
	for _, p := range Protocols {
		c := CrashPoints{Protocol: p, Sites: 1}
		for action := 1; ; action++ {
			crash := Crash{Site: Coordinator, Action: action}
			run := r.crash(p, crash)
			if run.early[Coordinator] < action {
				break
			}
			if c.add(run); len(run.Blocked()) > 0 {
				c.At = append(c.At, action)
			}
			if p == ThreePhase {
				continue
			}
			crash.Back = BackAfter
			c.Back = max(c.Back, r.crash(p, crash).Waited())
		}
		r.Crashes = append(r.Crashes, c)
	}
	for _, p := range Protocols {
		c := CrashPoints{Protocol: p, Sites: 2}
		r.pairs(&c)
		r.Crashes = append(r.Crashes, c)
	}
}

// crash runs a protocol with crashes and equal delays.
func (r *Report) crash(p Protocol, crashes ...Crash) *Run {
	return Simulate(Scenario{Protocol: p, Participants: r.Participants, Steady: true, Crashes: crashes})
}

func (c *CrashPoints) add(run *Run) {
	c.Points++
	if run.Split() {
		c.Split++
	}
	if len(run.Blocked()) > 0 {
		c.Blocked++
		return
	}
	c.Waited = max(c.Waited, run.Waited())
}

// pairs crashes every two sites at every two of their actions. The first crash
// changes the number of the second site's actions.
func (r *Report) pairs(c *CrashPoints) {
	for i := range Site(r.Participants + 1) {
		for j := i + 1; int(j) <= r.Participants; j++ {
			for first, more := 1, true; more; first++ {
				for second := 1; ; second++ {
					run := r.crash(c.Protocol, Crash{Site: i, Action: first}, Crash{Site: j, Action: second})
					more = run.early[i] >= first
					if !more || run.early[j] < second {
						break
					}
					c.add(run)
				}
			}
		}
	}
}
