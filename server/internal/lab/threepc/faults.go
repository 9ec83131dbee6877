package threepc

import (
	"math/rand/v2"
	"time"
)

// Faults is what comes of runs with random delays and votes, and one kind of fault.
type Faults struct {
	Protocol  Protocol      `json:"protocol"`
	Fault     string        `json:"fault"`
	Runs      int           `json:"runs"`
	Committed int           `json:"committed"` // somewhere
	Blocked   int           `json:"blocked"`
	Split     int           `json:"split"`
	Waited    time.Duration `json:"waited_ns"` // the longest from a vote to a decision, where all decide
}

// kindOfFault makes a scenario worse.
type kindOfFault struct {
	name  string
	spoil func(*Scenario, *rand.Rand)
}

var kindsOfFault = []kindOfFault{
	{"none but delays", func(*Scenario, *rand.Rand) {}},
	{"crashes", func(s *Scenario, random *rand.Rand) {
		for _, i := range random.Perm(s.Participants + 1)[:1+random.IntN(s.Participants)] {
			s.Crashes = append(s.Crashes, Crash{Site: Site(i), Action: 1 + random.IntN(4*s.Participants)})
		}
	}},
	{"messages lost, one in ten", func(s *Scenario, _ *rand.Rand) { s.Loss = 0.1 }},
	{"a partition that heals", func(s *Scenario, random *rand.Rand) {
		s.Cut = &Cut{From: time.Duration(random.Int64N(int64(6 * defaultDelay))), For: 60 * defaultDelay}
		for i := 1; i < s.shape().sites(); i++ {
			if random.IntN(2) == 0 {
				s.Cut.Side = append(s.Cut.Side, Site(i))
			}
		}
	}},
}

func (r *Report) faults(runs int, seed uint64) error {
	for _, fault := range kindsOfFault {
		for _, p := range Protocols {
			f := Faults{Protocol: p, Fault: fault.name}
			for i := range uint64(runs) {
				s := Scenario{Protocol: p, Participants: r.Participants, Seed: seed + i}
				random := rand.New(rand.NewPCG(seed+i, 4))
				if random.IntN(8) == 0 {
					s.No = []Site{Site(1 + random.IntN(r.Participants))}
				}
				fault.spoil(&s, random)
				run, err := Simulate(s)
				if err != nil {
					return err
				}
				f.add(run)
			}
			r.Faults = append(r.Faults, f)
		}
	}
	return nil
}

func (f *Faults) add(run *Run) {
	f.Runs++
	if run.Committed() {
		f.Committed++
	}
	if run.Split() {
		f.Split++
	}
	if len(run.Blocked()) > 0 {
		f.Blocked++
		return
	}
	f.Waited = max(f.Waited, run.Waited())
}
