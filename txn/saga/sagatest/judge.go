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

// Judge returns the finding of a run, or nil. Reference is the world after a saga that has
// succeeded; nil if it is not known yet.
func (r *run) Judge(reference []string) *Finding {
	f := &Finding{Kind: r.Kind, Step: r.Name, Scenario: r.Words}
	if r.CrashedAt != nil {
		r.blame(f)
	}
	if r.Hangs || !r.state.Final() {
		return r.unended(f)
	}
	if r.Kind == LateActionAccepted { // other scenarios show other faults
		return r.lateness(f)
	}
	if step, err := r.repeatRefused(); err != nil {
		f.Step, f.Problem = step, fmt.Sprintf("the first call was done, and its repetition was refused: %v", err)
		return f
	}
	if i := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Status == "dead" }); i >= 0 {
		f.Step = r.steps[i].Step
		f.Problem = fmt.Sprintf("its undo failed permanently, and the saga is a dead letter: %s", r.steps[i].Err)
		return f
	}
	return r.compare(f, reference)
}

// lateness checks that a late call has had no effect.
func (r *run) lateness(f *Finding) *Finding {
	f.Problem, f.Diff = "the late call took effect, and nothing undoes it", rehearsal.Diff(r.After, r.Late)
	if r.Late == nil || f.Diff == "" {
		return nil
	}
	return f
}

// compare compares the worlds.
func (r *run) compare(f *Finding, reference []string) *Finding {
	switch {
	case r.Alone && r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and an effect of the step remains", rehearsal.Diff(r.Before, r.After)
	case r.state == saga.Compensated && r.Name != "" && r.Delivered(branch.Do) < 2:
		return nil // the step was given up at once, and was not repeated
	case r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and the world has changed", rehearsal.Diff(r.Initial, r.Final)
	case r.state == saga.Succeeded && reference != nil:
		f.Problem, f.Diff = "the saga succeeded, and the world differs from that after a run without faults", rehearsal.Diff(reference, r.Final)
	}
	if f.Diff == "" {
		return nil
	}
	return f
}

// unended returns why a saga has not ended.
func (r *run) unended(f *Finding) *Finding {
	name, problem := r.Unended(fmt.Sprintf("after %v the saga is %s", r.limit, r.state))
	f.Kind, f.Step, f.Problem = NeverEnds, cmp.Or(name, r.Last), problem
	for _, a := range r.Answers {
		if a.Refuses() && a.Operation == branch.Do && r.afterPivot(a.Name) {
			f.Kind, f.Step = StepAfterPivotRefuses, a.Name
			f.Problem = fmt.Sprintf("it must succeed, and its target refuses it permanently: %v", a.Err)
			break
		}
	}
	return f
}

func (r *run) afterPivot(step string) bool {
	pivot := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Pivot })
	i := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Step == step })
	return pivot >= 0 && i >= 0 && r.steps[i].Stage > r.steps[pivot].Stage
}

// repeatRefused returns an action that was done, and refused a repeated call.
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

// blame assigns the finding of a run with a crash to the step that the engine was calling.
func (r *run) blame(f *Finding) {
	at := r.CrashedAt
	f.Scenario = fmt.Sprintf("%s, the engine crashed %s, and another one continued", r.Words, at.Words)
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

// Plain returns why the run without faults is no reference.
func (r *run) Plain() error {
	if r.state == saga.Succeeded {
		return nil
	}
	return fmt.Errorf("without faults the saga must succeed, and is %s: %w", r.state, errors.New(r.reason))
}

// Kind is the kind of a finding.
type Kind string

// The kinds of findings.
const (
	// MissingUndo means that an effect of the step remains after the saga was undone. It
	// has no undo and is declared Uncompensable, or its undo is incomplete or gives up.
	MissingUndo Kind = "missing undo"
	// UndoNotIdempotent means that two calls of an undo differ from one.
	UndoNotIdempotent Kind = "undo not idempotent"
	// UndoNeedsOutput means that an undo is wrong without an output, as after an unknown
	// outcome of the step. It leaves an effect of a completed step; or the step was not
	// done, and the undo fails or has an effect.
	UndoNeedsOutput Kind = "undo needs the output"
	// ActionNotIdempotent means that two calls of an action under one key differ from one,
	// or that it refuses the second.
	ActionNotIdempotent Kind = "action not idempotent"
	// PivotNotRepeatable is ActionNotIdempotent of the pivot, which is never undone.
	PivotNotRepeatable Kind = "pivot not repeatable"
	// LateActionAccepted means that an action that arrived after its undo had an effect,
	// which is never undone.
	LateActionAccepted Kind = "late action accepted"
	// StepAfterPivotRefuses means that a step after the pivot refuses permanently.
	StepAfterPivotRefuses Kind = "step after the pivot refuses"
	// NeverEnds means that the saga has not ended within [Scene.Limit].
	NeverEnds Kind = "never ends"
)

// A Finding is a fault that a saga does not tolerate.
type Finding struct {
	Kind     Kind
	Step     string // its key; empty if unknown
	Scenario string // the fault of the run
	Problem  string // its outcome
	Diff     string // of the snapshots, expected lines (-) and actual ones (+); may be empty
}

// String formats the finding on several lines.
func (f Finding) String() string {
	with := ""
	if f.Step != "" {
		with = "step " + f.Step
	}
	return rehearsal.Report(string(f.Kind), with, f.Scenario, f.Problem, f.Diff)
}
