package sagatest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// forward repeats the action of a step.
func (e *explorer) forward(s saga.Progress) error {
	kind := ActionNotIdempotent
	if s.Pivot {
		kind = PivotNotRepeatable
	}
	action := callID{Name: s.Step, Operation: branch.Do, N: 1}
	return e.First(
		scenario{Words: fmt.Sprintf("the answer of %s was lost, and it was repeated", s.Step),
			Kind: kind, Name: s.Step, FaultOf: rehearsal.Only(action, rehearsal.Lost)},
		scenario{Words: fmt.Sprintf("%s arrived twice", s.Step),
			Kind: kind, Name: s.Step, FaultOf: rehearsal.Only(action, fault{Twice: true})})
}

// An undoCase is a reason why a saga undoes a step.
type undoCase struct {
	words   string
	faultOf func(n int) fault // of the n-th call of the action
}

var (
	laterRefused = undoCase{"%s was done, and later and concurrent steps were refused", func(int) fault { return fault{} }}
	answerLost   = undoCase{"%s was done, and its answer was lost permanently", uncertain(rehearsal.Lost)}
	neverArrived = undoCase{"%s was lost, and its outcome was unknown", uncertain(rehearsal.Gone)}
)

// uncertain leaves the outcome of the first call unknown, and refuses the others.
func uncertain(first fault) func(int) fault {
	return func(n int) fault {
		if n == 1 {
			return first
		}
		return rehearsal.Refused
	}
}

// backward undoes a step, and injects faults into its undo. It ends if the first scenario has a finding,
// which the others would repeat.
func (e *explorer) backward(s saga.Progress) error {
	if s.Stage >= e.pivotAt() {
		return nil
	}
	usual, kind := laterRefused, MissingUndo
	if e.last(s) { // no later step can be refused
		usual, kind = answerLost, UndoNeedsOutput
	}
	if s.Undo == "" {
		if e.last(s) {
			return nil
		}
		return e.First(e.undone(s, kind, usual, ", and it is declared Uncompensable", callID{}, fault{}))
	}
	before := len(e.Found)
	if err := e.First(e.undone(s, kind, usual, ", and it was undone", callID{}, fault{})); err != nil || len(e.Found) > before {
		return err
	}
	for _, scenarios := range e.undoFaults(s, usual) {
		if err := e.First(scenarios...); err != nil {
			return err
		}
	}
	return nil
}

// undoFaults returns the scenarios around the undo of a step. Those of one group show the same.
func (e *explorer) undoFaults(s saga.Progress, usual undoCase) [][]scenario {
	undo := callID{Name: s.Step, Operation: branch.Undo, N: 1}
	return [][]scenario{{
		e.undone(s, UndoNeedsOutput, answerLost, ", and it was undone without its output", callID{}, fault{}),
		e.undone(s, UndoNeedsOutput, neverArrived, ", and it was undone without its output", callID{}, fault{}),
	}, {
		e.undone(s, UndoNotIdempotent, usual, ", the answer of its undo was lost, and the undo was repeated", undo, rehearsal.Lost),
		e.undone(s, UndoNotIdempotent, usual, ", and its undo arrived twice", undo, fault{Twice: true}),
	}, {
		e.undone(s, MissingUndo, usual, ", and its first undo was lost", undo, rehearsal.Gone),
	}, {
		e.undone(s, LateActionAccepted, usual, ", it was undone, and then it arrived again", undo, fault{Late: true}),
		e.undone(s, LateActionAccepted, neverArrived, ", it was undone, and then it arrived for the first time", undo, fault{Late: true}),
	}}
}

// last reports whether no other step is called after this one or beside it.
func (e *explorer) last(s saga.Progress) bool {
	return !slices.ContainsFunc(e.steps, func(other saga.Progress) bool { return other.Stage >= s.Stage && other.Step != s.Step })
}

// undone returns a scenario in which a step is undone first: later and concurrent steps are refused, so that
// only the effect of the step itself is compared.
func (e *explorer) undone(s saga.Progress, kind Kind, how undoCase, words string, which callID, m fault) scenario {
	stages := e.stages()
	return scenario{Words: fmt.Sprintf(how.words, s.Step) + words, Kind: kind, Name: s.Step, Alone: true,
		FaultOf: func(d callID) fault {
			stage, known := stages[d.Name]
			switch {
			case d == which:
				return m
			case d.Name == s.Step && d.Operation == branch.Do:
				return how.faultOf(d.N)
			case d.Operation == branch.Do && (!known || stage >= s.Stage):
				return rehearsal.Refused
			}
			return fault{}
		}}
}

// stages returns the stage of each step.
func (e *explorer) stages() map[string]int {
	stages := map[string]int{}
	for _, s := range e.steps {
		stages[s.Step] = s.Stage
	}
	return stages
}

// refusals returns the scenarios in which a stage up to the pivot is refused, and everything before it is
// undone together.
func (e *explorer) refusals() (scenarios []scenario) {
	stages := e.stages()
	for i, s := range e.steps {
		if s.Stage > e.pivotAt() || i > 0 && e.steps[i-1].Stage == s.Stage {
			continue
		}
		scenarios = append(scenarios, scenario{Words: s.Step + " was refused", Kind: MissingUndo,
			FaultOf: func(d callID) fault {
				if stage, known := stages[d.Name]; d.Operation == branch.Do && (!known || stage >= s.Stage) {
					return rehearsal.Refused
				}
				return fault{}
			}})
	}
	return scenarios
}

// A Scene is a saga before its start, in its own world.
type Scene[I any] struct {
	// Saga is the definition, over the world. Its retry policies apply; times are virtual.
	Saga saga.Definition[I]
	// Input is the input of the saga.
	Input I
	// Snapshot returns the world: a string, or a value that is then encoded as JSON. It
	// shows the state, not the history: equal worlds have equal snapshots. It is not
	// called during an action or undo.
	Snapshot func() any
	// Ignore reports whether a line of a snapshot does not count, such as one of a log; nil
	// ignores none.
	Ignore func(line string) bool
	// RealTime makes the saga use the machine's clock, for actions that use a network.
	// Pauses before retries are then an eighth of their bounds, but timeouts and waits
	// take their full time.
	RealTime bool
	// Limit bounds a run; a saga that has not ended by then is a [NeverEnds]. It must be
	// longer than the saga's own waits. 0 means two days, or in real time 10 seconds.
	Limit time.Duration
}

// Explore runs a scene in all scenarios of the package comment, and reports each finding as an
// error of the test. The function returns a new scene for each run, always the same; there are
// some twenty runs for a step. Explore must not be called in a bubble of synctest.
func Explore[I any](t *testing.T, scene func() Scene[I]) {
	t.Helper()
	found, err := Findings(t, scene)
	for _, f := range found {
		t.Error(f)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Findings is [Explore] that returns the findings, at most one for each kind and step. The error
// has the reason why the exploration did not begin, or ended early: the definition is invalid,
// the saga does not succeed without faults, or the scenes differ.
func Findings[I any](t *testing.T, scene func() Scene[I]) ([]Finding, error) {
	t.Helper()
	if scene == nil {
		return nil, errors.New("explore a saga: a function that returns a scene is required")
	}
	found, err := newExplorer(t, func() set { return built(scene()) }).explore()
	if err != nil {
		return found, fmt.Errorf("explore a saga: %w", err)
	}
	return found, nil
}

// set is a scene without its type.
type set struct {
	defined  func(around saga.Interceptor) saga.Defined
	do       func(ctx context.Context, e *saga.Engine) error // begins the saga, or attaches to it, and waits for its end
	snapshot func() any
	ignore   func(line string) bool
	realTime bool
	limit    time.Duration
}

// id is the id of the saga in the journal of each run.
const id = "explored"

func built[I any](s Scene[I]) set {
	if s.Limit <= 0 {
		s.Limit = 48 * time.Hour
		if s.RealTime {
			s.Limit = 10 * time.Second
		}
	}
	return set{
		defined: func(around saga.Interceptor) saga.Defined { return s.Saga.Intercept(around) },
		do: func(ctx context.Context, e *saga.Engine) error {
			_, err := s.Saga.Do(ctx, e, id, s.Input)
			return err
		},
		snapshot: s.Snapshot, ignore: s.Ignore, realTime: s.RealTime, limit: s.Limit,
	}
}
