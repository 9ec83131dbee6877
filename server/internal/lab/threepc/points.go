package threepc

import "time"

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
