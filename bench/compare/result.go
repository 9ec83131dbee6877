package compare

import (
	"fmt"
	"strings"
)

// Result is the measurement of a case.
type Result struct {
	Name  string     `json:"name"`
	Note  string     `json:"note"`
	Goals []Goal     `json:"goals"`
	Sides []Measured `json:"sides"`
}

// Ratio is a goal with its figures: a metric of our side divided by that of another side in
// the same round, or the metric itself if there is no other side.
type Ratio struct {
	Goal
	Name   string // of the case
	Ours   string // the side
	Theirs string // the best of the sides compared with; empty if there is none
	// Mine and Other are the medians of the metric.
	Mine, Other      float64
	Value, Low, High float64
	// Cost is the processor time of this process and of the servers for an operation, on our
	// side and on the other one.
	Cost string
}

// Ratios returns the measured goals of the case.
func (r Result) Ratios() []Ratio {
	var all []Ratio
	for _, g := range r.Goals {
		if ratio, ok := r.ratio(g); ok {
			all = append(all, ratio)
		}
	}
	return all
}

func (r Result) ratio(g Goal) (ratio Ratio, ok bool) {
	ours, ok := r.side(g.Side)
	mine := ours.values(g.Metric)
	if !ok || len(mine) == 0 {
		return Ratio{}, false
	}
	ratio = Ratio{Goal: g, Name: r.Name, Ours: ours.Name, Mine: median(mine), Cost: ours.cost()}
	values := mine
	if len(g.Against) > 0 {
		best, ok := r.best(g)
		if !ok {
			return Ratio{}, false
		}
		ratio.Theirs, ratio.Other = best.Name, best.Median(g.Metric)
		ratio.Cost += " / " + best.cost()
		values = nil
		for i, other := range best.values(g.Metric) {
			if i < len(mine) && other > 0 {
				values = append(values, mine[i]/other)
			}
		}
	}
	ratio.Value = median(values)
	ratio.Low, ratio.High = spread(values)
	return ratio, len(values) > 0
}

// side returns a side by name; an empty name is the first one.
func (r Result) side(name string) (Measured, bool) {
	for _, side := range r.Sides {
		if name == "" || side.Name == name {
			return side, true
		}
	}
	return Measured{}, false
}

// best returns the side with the best median among those that a goal compares with.
func (r Result) best(g Goal) (best Measured, ok bool) {
	for _, name := range g.Against {
		side, found := r.side(name)
		if !found || len(side.values(g.Metric)) == 0 {
			continue
		}
		if better := side.Median(g.Metric) > best.Median(g.Metric); !ok || better != g.AtMost {
			best, ok = side, true
		}
	}
	return best, ok
}

// Join adds the rounds of a second measurement of the same case.
func (r *Result) Join(again Result) {
	for i := range r.Sides {
		if side, ok := again.side(r.Sides[i].Name); ok {
			r.Sides[i].Rounds = append(r.Sides[i].Rounds, side.Rounds...)
			r.Sides[i].Violations = append(r.Sides[i].Violations, side.Violations...)
		}
	}
}

// Checker returns the violations of all sides, or "ok" if there are none.
func (r Result) Checker() string {
	var found []string
	for _, side := range r.Sides {
		if len(side.Violations) > 0 {
			found = append(found, fmt.Sprintf("%s: %s", side.Name, strings.Join(side.Violations, "; ")))
		}
	}
	if len(found) == 0 {
		return "ok"
	}
	return strings.Join(found, ". ")
}

// Met reports whether the goal is reached, or there is none.
func (r Ratio) Met() bool {
	if r.AtMost {
		return r.Want == 0 || r.Value <= r.Want
	}
	return r.Value >= r.Want
}

// Key identifies a ratio among all of a run.
func (r Ratio) Key() string {
	key := r.Name + " " + r.Ours + " " + r.Metric
	if len(r.Against) > 0 {
		key += " / " + strings.Join(r.Against, ", ")
	}
	return key
}

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
