package sagatest

import (
	"math"
	"slices"
	"testing"

	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// explorer runs one scene.
type explorer struct {
	rehearsal.Explorer[Kind, Finding, *run]
	steps []saga.Progress
}

func newExplorer(t *testing.T, build func() set) *explorer {
	e := &explorer{}
	e.T, e.RealTime = t, build().realTime
	e.New = func(p scenario) *run { return &run{Trial: rehearsal.Trial[Kind]{Scenario: p}, build: build} }
	e.Key = func(f Finding) (Kind, string) { return f.Kind, f.Step }
	return e
}

// explore runs all scenarios.
func (e *explorer) explore() ([]Finding, error) {
	first, over, err := e.WithoutFaults(scenario{Words: "there is no fault"})
	if over || err != nil {
		return e.Found, err
	}
	for _, s := range first.steps {
		if s.Until.IsZero() {
			e.steps = append(e.steps, s)
		}
	}
	for _, s := range e.steps {
		if err := e.forward(s); err != nil {
			return e.Found, err
		}
		if err := e.backward(s); err != nil {
			return e.Found, err
		}
	}
	if len(e.Found) > 0 { // other scenarios would repeat the findings
		return e.Found, nil
	}
	scenarios := append([]scenario{{Words: "there is no other fault", Kind: UndoNeedsOutput}}, e.refusals()...)
	for _, p := range scenarios[1:] {
		if err := e.First(p); err != nil {
			return e.Found, err
		}
	}
	for _, p := range scenarios {
		if err := e.Crashes(p); err != nil {
			return e.Found, err
		}
	}
	return e.Found, nil
}

// pivotAt returns the stage of the pivot, or one after all stages.
func (e *explorer) pivotAt() int {
	i := slices.IndexFunc(e.steps, func(s saga.Progress) bool { return s.Pivot })
	if i < 0 {
		return math.MaxInt
	}
	return e.steps[i].Stage
}
