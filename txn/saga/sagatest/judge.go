package sagatest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// Judge says what a run shows to be wrong; nil is nothing. Reference is the world after
// a saga that has succeeded; nil is not known yet.
func (r *run) Judge(reference []string) *Finding {
	f := &Finding{Kind: r.Kind, Step: r.Name, Scenario: r.Words}
	if r.CrashedAt != nil {
		r.blame(f)
	}
	if r.Hangs || !r.state.Final() {
		return r.unended(f)
	}
	if r.Kind == LateActionAccepted { // other scenarios show what else is wrong
		return r.lateness(f)
	}
	if step, err := r.repeatRefused(); err != nil {
		f.Step, f.Problem = step, fmt.Sprintf("the first call was done, and its repetition refused: %v", err)
		return f
	}
	if i := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Status == "dead" }); i >= 0 {
		f.Step = r.steps[i].Step
		f.Problem = fmt.Sprintf("its undo was given up, and the saga is a dead letter: %s", r.steps[i].Err)
		return f
	}
	return r.compare(f, reference)
}

// lateness looks for what a late call has done.
func (r *run) lateness(f *Finding) *Finding {
	f.Problem, f.Diff = "the late call took effect, and nothing takes it back", rehearsal.Diff(r.After, r.Late)
	if r.Late == nil || f.Diff == "" {
		return nil
	}
	return f
}

// compare looks for what differs in the worlds.
func (r *run) compare(f *Finding, reference []string) *Finding {
	switch {
	case r.Alone && r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and the step has left the world changed", rehearsal.Diff(r.Before, r.After)
	case r.state == saga.Compensated && r.Name != "" && r.Delivered(branch.Do) < 2:
		return nil // it is given up at once, and was not repeated
	case r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and the world is not as it was", rehearsal.Diff(r.Initial, r.Final)
	case r.state == saga.Succeeded && reference != nil:
		f.Problem, f.Diff = "the saga succeeded, and the world is not as it is after an undisturbed one", rehearsal.Diff(reference, r.Final)
	}
	if f.Diff == "" {
		return nil
	}
	return f
}

// unended says why a saga has not ended.
func (r *run) unended(f *Finding) *Finding {
	name, problem := r.Unended(fmt.Sprintf("after %v the saga is %s", r.limit, r.state))
	f.Kind, f.Step, f.Problem = NeverEnds, cmp.Or(name, r.Last), problem
	for _, a := range r.Answers {
		if a.Refuses() && a.Operation == branch.Do && r.behindPivot(a.Name) {
			f.Kind, f.Step = StepBehindPivotRefuses, a.Name
			f.Problem = fmt.Sprintf("it has to be done, and its target refuses it for good: %v", a.Err)
			break
		}
	}
	return f
}

func (r *run) behindPivot(step string) bool {
	pivot := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Pivot })
	i := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Step == step })
	return pivot >= 0 && i >= 0 && r.steps[i].Stage > r.steps[pivot].Stage
}

// repeatRefused finds an action that was done, and refused when it was called again.
func (r *run) repeatRefused() (step string, err error) {
	done := map[string]bool{}
	for _, a := range r.Answers {
		switch {
		case a.Operation == branch.Undo:
		case a.Err == nil:
			done[a.Name] = true
		case done[a.Name] && a.Refuses():
			return a.Name, a.Err
		}
	}
	return "", nil
}

// blame gives the finding of a run in which the engine has crashed to the step that it
// was at work on.
func (r *run) blame(f *Finding) {
	at := r.CrashedAt
	f.Scenario = fmt.Sprintf("%s, and the engine crashed %s, and another one went on", r.Words, at.Words)
	f.Step = at.Name
	pivot := slices.ContainsFunc(r.steps, func(p saga.Progress) bool { return p.Pivot && p.Step == at.Name })
	switch {
	case at.Operation == branch.Undo:
		f.Kind = UndoNotIdempotent
	case pivot:
		f.Kind = PivotNotRepeatable
	case at.Name != "" || r.state == saga.Succeeded:
		f.Kind = ActionNotIdempotent
	}
}

// Plain is why the undisturbed run is none to go by.
func (r *run) Plain() error {
	if r.state == saga.Succeeded {
		return nil
	}
	return fmt.Errorf("undisturbed, the saga has to succeed, and is %s: %w", r.state, errors.New(r.reason))
}

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
