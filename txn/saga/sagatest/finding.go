package sagatest

import "github.com/interlock-dev/interlock/txn/internal/rehearsal"

// Kind is what is wrong with a step.
type Kind string

// The kinds of findings.
const (
	// MissingUndo: something of the step is left when the saga was undone. It has no
	// undo and is declared Uncompensable, or its undo does not take everything back, or
	// gives up.
	MissingUndo Kind = "missing undo"
	// UndoNotIdempotent: an undo that is called twice is not as if called once.
	UndoNotIdempotent Kind = "undo not idempotent"
	// UndoNeedsOutput: an undo that is called with nil, because nobody knows whether
	// the step was done, leaves something of a step that was, or fails or changes
	// something if it was not.
	UndoNeedsOutput Kind = "undo needs the output"
	// ActionNotIdempotent: an action that is called twice under one key is not as if
	// called once, or refuses the second call.
	ActionNotIdempotent Kind = "action not idempotent"
	// PivotNotRepeatable is ActionNotIdempotent of the pivot, which nothing takes back.
	PivotNotRepeatable Kind = "pivot not repeatable"
	// LateActionAccepted: an action that arrived behind its undo took effect, and
	// nothing will take that back.
	LateActionAccepted Kind = "late action accepted"
	// StepBehindPivotRefuses: a step that has to be done answers that it never will.
	StepBehindPivotRefuses Kind = "step behind the pivot refuses"
	// NeverEnds: the saga has not ended when the time of the run was up.
	NeverEnds Kind = "never ends"
)

// A Finding is one way in which a saga does not stand what can happen to it.
type Finding struct {
	Kind     Kind
	Step     string // its key; empty if it is not known which
	Scenario string // what went wrong in that run
	Problem  string // its outcome
	Diff     string // of the snapshots, as it should be (-) and as it is (+), a line each; may be empty
}

// String tells it on several lines.
func (f Finding) String() string {
	with := ""
	if f.Step != "" {
		with = "step " + f.Step
	}
	return rehearsal.Report(string(f.Kind), with, f.Scenario, f.Problem, f.Diff)
}
