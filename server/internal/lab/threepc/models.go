package threepc

// Models are those that a report goes through. Every number of crashes is all sites.
func models() []Model {
	return []Model{
		{Protocol: TwoPhase, Participants: 2, Crashes: 1},
		{Protocol: TwoPhase, Participants: 3, Crashes: 4},
		{Protocol: TwoPhase, Participants: 2, Crashes: 1, Partition: true},
		{Protocol: TwoPhase, Participants: 3, Partition: true},
		{Protocol: TwoPhase, Participants: 2, Crashes: 3, Asynchronous: true},
		{Protocol: TwoPhase, Participants: 3, Crashes: 1, Asynchronous: true},
		{Protocol: ThreePhase, Participants: 2, Crashes: 3},
		{Protocol: ThreePhase, Participants: 3, Crashes: 4},
		{Protocol: ThreePhase, Participants: 2, Partition: true},
		{Protocol: ThreePhase, Participants: 3, Partition: true},
		{Protocol: ThreePhase, Participants: 2, Asynchronous: true},
		{Protocol: Register, Participants: 2, Crashes: 3},
		{Protocol: Register, Participants: 3, Crashes: 4},
		{Protocol: Register, Participants: 2, Crashes: 1, Partition: true},
		{Protocol: Register, Participants: 3, Partition: true},
		{Protocol: Register, Participants: 2, Crashes: 2, Asynchronous: true},
	}
}

func (r *Report) models() error {
	for _, m := range models() {
		x, err := Explore(m)
		if err != nil {
			return err
		}
		r.Models = append(r.Models, x)
	}
	return nil
}

// logs is one crash of the coordinator, when it has all votes and has sent nothing, under
// two protocols.
func (r *Report) logs() error {
	for p, log := range map[Protocol]*[]string{TwoPhase: &r.Blocking, ThreePhase: &r.Deciding} {
		// It sends a question to each, and has an answer from each.
		crash := Crash{Site: Coordinator, Action: 2*r.Participants + 1}
		run, err := Simulate(Scenario{Protocol: p, Participants: r.Participants, Steady: true, Crashes: []Crash{crash}, Log: true})
		if err != nil {
			return err
		}
		*log = run.Log
	}
	return nil
}

// model of a report, by what it says; nil if it has none.
func (r *Report) model(want Model) *Exploration {
	for _, x := range r.Models {
		if x.Model == want {
			return x
		}
	}
	return nil
}
