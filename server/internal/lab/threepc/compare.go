package threepc

import "fmt"

// Options of a comparison. The zero value works.
type Options struct {
	// Participants of the simulated runs, 1 to 6; 0 is 3.
	Participants int
	// Runs is how many seeds each kind of fault is tried with; 0 is 1000.
	Runs int
	// Seed of the first of them; the others follow.
	Seed uint64
}

// A Report is what a comparison has found. Its String is Markdown that explains itself.
type Report struct {
	Participants int            `json:"participants"`
	Costs        []Cost         `json:"costs"`
	Crashes      []CrashPoints  `json:"crashes"` // of the coordinator, then of every two sites
	Faults       []Faults       `json:"faults"`
	Models       []*Exploration `json:"models"`
	// Blocking is the log of a run of two-phase commit whose coordinator crashes once
	// all have voted yes; Deciding that of three-phase commit.
	Blocking []string `json:"blocking"`
	Deciding []string `json:"deciding"`
}

// Cost is what a run without faults takes, in which each message takes one delay.
type Cost struct {
	Protocol     Protocol `json:"protocol"`
	Participants int      `json:"participants"`
	Messages     int      `json:"messages"`
	Writes       int      `json:"writes"`  // that a message had to wait for
	Decided      int      `json:"decided"` // delays until the first site had decided, which can tell the caller
	Known        int      `json:"known"`   // delays until all had
}

// Compare plays all protocols against each other: costs, a crash at each step, random
// faults, and every schedule of small models. It computes for some seconds; nil is the
// zero Options. The same options always give the same report.
func Compare(o *Options) (*Report, error) {
	if o == nil {
		o = &Options{}
	}
	if o.Participants < 0 || o.Participants > maxSites-2 || o.Runs < 0 {
		return nil, fmt.Errorf("threepc: a comparison of %d participants in %d runs", o.Participants, o.Runs)
	}
	r := &Report{Participants: o.Participants}
	if r.Participants == 0 {
		r.Participants = 3
	}
	runs := o.Runs
	if runs == 0 {
		runs = 1000
	}
	for _, part := range []func() error{r.costs, r.crashes, func() error { return r.faults(runs, o.Seed) }, r.models, r.logs} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Report) costs() error {
	for _, p := range Protocols {
		for n := 1; n <= maxSites-2; n++ {
			run, err := Simulate(Scenario{Protocol: p, Participants: n, Steady: true})
			if err != nil {
				return err
			}
			c := Cost{Protocol: p, Participants: n, Messages: run.Messages, Writes: run.Writes}
			for i, f := range run.Fates {
				at := int(f.At / defaultDelay)
				if c.Known = max(c.Known, at); i == 0 || at < c.Decided {
					c.Decided = at
				}
			}
			r.Costs = append(r.Costs, c)
		}
	}
	return nil
}
