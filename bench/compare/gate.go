package compare

import "fmt"

// Share is the part of a recorded ratio that must be reached.
const Share = 0.8

// Gate compares the ratios of a run with the recorded ones. It returns the ratios below their share,
// those that our side no longer measures, and what checkers found; and ratios of which it cannot decide. A time or a rate without another
// side is a property of the machine, and passes.
func Gate(now, recorded Report) (failed, unclear []string) {
	before := map[string]Ratio{}
	for _, r := range recorded.Ratios() {
		before[r.Key()] = r
	}
	for _, result := range now.Results {
		if verdict := result.Checker(); verdict != "ok" {
			failed = append(failed, result.Name+": the checker found: "+verdict)
		}
		for _, g := range result.Goals {
			ours, _ := result.side(g.Side)
			missing := Ratio{Goal: g, Name: result.Name, Ours: ours.Name}
			if _, ok := before[missing.Key()]; ok && ours.values(g.Metric) == nil {
				failed = append(failed, missing.Key()+": recorded, and no longer measured")
			}
		}
		for _, r := range result.Ratios() {
			was, ok := before[r.Key()]
			switch text, fails := r.judge(was, ok); {
			case fails:
				failed = append(failed, r.Key()+": "+text)
			case text != "":
				unclear = append(unclear, r.Key()+": "+text)
			}
		}
	}
	return failed, unclear
}

// judge compares a ratio with the recorded one.
func (r Ratio) judge(was Ratio, recorded bool) (text string, fails bool) {
	kept := r.Value >= was.Value*Share
	if r.AtMost {
		kept = r.Value*Share <= was.Value || was.Value == 0 && r.Met() // a count of zero may become a small one
	}
	switch {
	case r.ofMachine():
		return "", false
	case !recorded:
		return fmt.Sprintf("%s, and none is recorded", figure(r.Value)), false
	case !kept:
		return fmt.Sprintf("%s, and %s is recorded", figure(r.Value), figure(was.Value)), true
	case r.High*Share > r.Low:
		return fmt.Sprintf("too noisy to tell: %s to %s, and %s is recorded", figure(r.Low), figure(r.High), figure(was.Value)), false
	}
	return "", false
}

// ofMachine reports whether the figure is an absolute time or rate.
func (r Ratio) ofMachine() bool {
	if len(r.Against) > 0 {
		return false
	}
	switch r.Metric {
	case Rate, P50, P99, Max, CPU, ServerCPU:
		return true
	}
	return false
}
