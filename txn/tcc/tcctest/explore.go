package tcctest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// explorer runs one scene.
type explorer struct {
	rehearsal.Explorer[Kind, Finding, *run]
	sweeps, shows bool
	branches      []string
}

func newExplorer(t *testing.T, scene func() Scene) *explorer {
	s, e := scene(), &explorer{}
	e.T, e.RealTime, e.sweeps, e.shows = t, s.RealTime, s.Sweep != nil, s.Visible != nil
	e.New = func(p scenario) *run {
		return &run{Trial: rehearsal.Trial[Kind]{Scenario: p}, scene: scene, branches: e.branches}
	}
	e.Key = func(f Finding) (Kind, string) { return f.Kind, f.Branch }
	return e
}

// explore runs all scenarios.
func (e *explorer) explore() ([]Finding, error) {
	if over, err := e.withoutFaults(); over || err != nil {
		return e.Found, err
	}
	for _, b := range e.branches {
		if err := e.branch(b); err != nil {
			return e.Found, err
		}
	}
	return e.Found, e.together()
}

// withoutFaults reads the branches of a transaction without faults. over is true if something was
// found that ends the exploration.
func (e *explorer) withoutFaults() (over bool, err error) {
	p := scenario{Words: "there is no fault"}
	first, over, err := e.WithoutFaults(p)
	if over || err != nil {
		return over, err
	}
	e.branches = slices.Compact(slices.Sorted(slices.Values(first.tries)))
	for _, resource := range first.unreached() {
		e.Keep(&Finding{Kind: NeverReached, Branch: resource, Scenario: p.Words, Problem: "no branch of the transaction is one of this resource"})
	}
	return false, nil
}

// branch runs the scenarios of one branch.
func (e *explorer) branch(b string) error {
	for _, scenarios := range e.forward(b) {
		if err := e.First(scenarios...); err != nil {
			return err
		}
	}
	plain, others := e.backward(b)
	before := len(e.Found)
	if err := e.First(plain); err != nil || len(e.Found) > before {
		return err
	}
	for _, scenarios := range others {
		if scenarios[0].Kind == TryVisible && !e.shows {
			continue
		}
		if err := e.First(scenarios...); err != nil {
			return err
		}
	}
	return nil
}

// together runs the scenarios of all branches. It ends with the first finding: the rest would
// repeat it.
func (e *explorer) together() error {
	scenarios := append([]scenario{{Words: "there is no other fault", Kind: OutcomeDiffers}}, e.refusals()...)
	whole := append(slices.Clone(scenarios[1:]), concurrentRun())
	if e.sweeps {
		whole = append(whole, lateConfirm())
	}
	for _, p := range whole {
		if len(e.Found) > 0 {
			return nil
		}
		if err := e.First(p); err != nil {
			return err
		}
	}
	for _, p := range scenarios {
		for _, p.Abandon = range []bool{false, true} {
			if p.Abandon && !e.sweeps {
				continue
			}
			if err := e.Crashes(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// Plain returns why the run without faults is no reference.
func (r *run) Plain() error {
	switch {
	case r.outcome.State != tcc.Confirmed:
		return fmt.Errorf("without faults the transaction must be confirmed, and is %q: %w", r.outcome.State, errors.Join(r.said, errors.New(r.outcome.Reason)))
	case r.said != nil:
		return fmt.Errorf("without faults the transaction is confirmed, but Run returned: %w", r.said)
	}
	return nil
}
