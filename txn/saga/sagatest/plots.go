package sagatest

import (
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// What befalls each step.

// forward repeats the action of a step.
func (e *explorer) forward(s saga.Progress) error {
	kind := ActionNotIdempotent
	if s.Pivot {
		kind = PivotNotRepeatable
	}
	action := deed{Name: s.Step, Operation: branch.Do, N: 1}
	return e.First(
		plot{Words: fmt.Sprintf("the answer of %s was lost, and it was called again", s.Step),
			Kind: kind, Name: s.Step, Fate: rehearsal.Only(action, rehearsal.Lost)},
		plot{Words: fmt.Sprintf("%s arrived twice", s.Step),
			Kind: kind, Name: s.Step, Fate: rehearsal.Only(action, mishap{Twice: true})})
}

// A retreat is how a saga comes to undo a step.
type retreat struct {
	words string
	fate  func(n int) mishap // of the n-th call of the action
}

var (
	fromBehind = retreat{"%s was done, what comes after or beside it was refused", func(int) mishap { return mishap{} }}
	fromDoubt  = retreat{"%s was done and its answer lost for good", uncertain(rehearsal.Lost)}
	fromAfar   = retreat{"%s did not arrive, and its outcome was not known", uncertain(rehearsal.Gone)}
)

// uncertain leaves the outcome of the first call open, and has the step given up.
func uncertain(first mishap) func(int) mishap {
	return func(n int) mishap {
		if n == 1 {
			return first
		}
		return rehearsal.Refused
	}
}

// backward has a step undone, and lets things befall its undo. Where the plainest of
// this shows something the others would show it again.
func (e *explorer) backward(s saga.Progress) error {
	if s.Stage >= e.pivotAt() {
		return nil
	}
	usual, kind := fromBehind, MissingUndo
	if e.last(s) { // nothing can be refused behind it
		usual, kind = fromDoubt, UndoNeedsOutput
	}
	if s.Undo == "" {
		if e.last(s) {
			return nil
		}
		return e.First(e.undone(s, kind, usual, ", and it is declared to need no undo", deed{}, mishap{}))
	}
	before := len(e.Found)
	if err := e.First(e.undone(s, kind, usual, ", and it was undone", deed{}, mishap{})); err != nil || len(e.Found) > before {
		return err
	}
	for _, plots := range e.setbacks(s, usual) {
		if err := e.First(plots...); err != nil {
			return err
		}
	}
	return nil
}

// setbacks are the plots around the undo of a step, those that show the same together.
func (e *explorer) setbacks(s saga.Progress, usual retreat) [][]plot {
	undo := deed{Name: s.Step, Operation: branch.Undo, N: 1}
	return [][]plot{{
		e.undone(s, UndoNeedsOutput, fromDoubt, ", and it was undone without its output", deed{}, mishap{}),
		e.undone(s, UndoNeedsOutput, fromAfar, ", and it was undone without its output", deed{}, mishap{}),
	}, {
		e.undone(s, UndoNotIdempotent, usual, ", the answer of its undo was lost, and that was called again", undo, rehearsal.Lost),
		e.undone(s, UndoNotIdempotent, usual, ", and its undo arrived twice", undo, mishap{Twice: true}),
	}, {
		e.undone(s, MissingUndo, usual, ", and its undo arrived only when it was called again", undo, rehearsal.Gone),
	}, {
		e.undone(s, LateActionAccepted, usual, ", it was undone, and then it arrived once more", undo, mishap{Late: true}),
		e.undone(s, LateActionAccepted, fromAfar, ", it was undone, and only then it arrived", undo, mishap{Late: true}),
	}}
}

// last reports whether no step is called behind this one or beside it.
func (e *explorer) last(s saga.Progress) bool {
	return !slices.ContainsFunc(e.steps, func(other saga.Progress) bool { return other.Stage >= s.Stage && other.Step != s.Step })
}

// undone is a plot in which a step is undone, the first that is: whatever is called
// behind it or beside it is refused, so that only what the step itself did is looked at.
func (e *explorer) undone(s saga.Progress, kind Kind, how retreat, words string, which deed, m mishap) plot {
	stages := e.stages()
	return plot{Words: fmt.Sprintf(how.words, s.Step) + words, Kind: kind, Name: s.Step, Alone: true,
		Fate: func(d deed) mishap {
			stage, known := stages[d.Name]
			switch {
			case d == which:
				return m
			case d.Name == s.Step && d.Operation == branch.Do:
				return how.fate(d.N)
			case d.Operation == branch.Do && (!known || stage >= s.Stage):
				return rehearsal.Refused
			}
			return mishap{}
		}}
}

// stages is that of each step.
func (e *explorer) stages() map[string]int {
	stages := map[string]int{}
	for _, s := range e.steps {
		stages[s.Step] = s.Stage
	}
	return stages
}

// refusals are the plots in which a stage up to the pivot is refused, and all before it
// is undone together.
func (e *explorer) refusals() (plots []plot) {
	stages := e.stages()
	for i, s := range e.steps {
		if s.Stage > e.pivotAt() || i > 0 && e.steps[i-1].Stage == s.Stage {
			continue
		}
		plots = append(plots, plot{Words: s.Step + " was refused", Kind: MissingUndo,
			Fate: func(d deed) mishap {
				if stage, known := stages[d.Name]; d.Operation == branch.Do && (!known || stage >= s.Stage) {
					return rehearsal.Refused
				}
				return mishap{}
			}})
	}
	return plots
}
