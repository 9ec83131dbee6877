package sagatest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/saga"
)

// judge says what a run shows to be wrong; nil is nothing. Reference is the world after
// a saga that has succeeded; nil is not known yet.
func (r *run) judge(reference []string) *Finding {
	f := &Finding{Kind: r.kind, Step: r.step, Scenario: r.words}
	if r.crashedAt != nil {
		r.blame(f)
	}
	if r.hangs || !r.state.Final() {
		return r.unended(f)
	}
	if r.kind == LateActionAccepted { // other plots show what else is wrong
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
	f.Problem, f.Diff = "the late call took effect, and nothing takes it back", rehearsal.Diff(r.after, r.late)
	if r.late == nil || f.Diff == "" {
		return nil
	}
	return f
}

// compare looks for what differs in the worlds.
func (r *run) compare(f *Finding, reference []string) *Finding {
	switch {
	case r.alone && r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and the step has left the world changed", rehearsal.Diff(r.before, r.after)
	case r.state == saga.Compensated && r.step != "" && r.delivered() < 2:
		return nil // it is given up at once, and was not repeated
	case r.state == saga.Compensated:
		f.Problem, f.Diff = "the saga was undone, and the world is not as it was", rehearsal.Diff(r.initial, r.final)
	case r.state == saga.Succeeded && reference != nil:
		f.Problem, f.Diff = "the saga succeeded, and the world is not as it is after an undisturbed one", rehearsal.Diff(reference, r.final)
	}
	if f.Diff == "" {
		return nil
	}
	return f
}

// delivered is how often the action of the step arrived.
func (r *run) delivered() (n int) {
	for _, a := range r.answers {
		if a.step == r.step && !a.undo {
			n++
		}
	}
	return n
}

// unended says why a saga has not ended.
func (r *run) unended(f *Finding) *Finding {
	f.Kind, f.Step = NeverEnds, r.last
	if r.hangs {
		f.Problem = "a call does not return when its context ends, or leaves a goroutine that waits for ever"
		return f
	}
	f.Problem = fmt.Sprintf("after %v the saga is %s", r.limit, r.state)
	if i := len(r.answers) - 1; i >= 0 && r.answers[i].err != nil {
		f.Step, f.Problem = r.answers[i].step, fmt.Sprintf("%s, and the last call said: %v", f.Problem, r.answers[i].err)
	}
	for _, a := range r.answers {
		if a.refuses() && !a.undo && r.behindPivot(a.step) {
			f.Kind, f.Step = StepBehindPivotRefuses, a.step
			f.Problem = fmt.Sprintf("it has to be done, and its target refuses it for good: %v", a.err)
			break
		}
	}
	return f
}

func (a answer) refuses() bool {
	class, _ := branch.ClassOf(a.err)
	return a.err != nil && class == branch.ClassFail
}

func (r *run) behindPivot(step string) bool {
	pivot := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Pivot })
	i := slices.IndexFunc(r.steps, func(p saga.Progress) bool { return p.Step == step })
	return pivot >= 0 && i >= 0 && r.steps[i].Stage > r.steps[pivot].Stage
}

// repeatRefused finds an action that was done, and refused when it was called again.
func (r *run) repeatRefused() (step string, err error) {
	done := map[string]bool{}
	for _, a := range r.answers {
		switch {
		case a.undo:
		case a.err == nil:
			done[a.step] = true
		case done[a.step] && a.refuses():
			return a.step, a.err
		}
	}
	return "", nil
}

// blame gives the finding of a run in which the engine has crashed to the step that it
// was at work on.
func (r *run) blame(f *Finding) {
	at := r.crashedAt
	f.Scenario = fmt.Sprintf("%s, and the engine crashed %s, and another one went on", r.words, at.Words)
	f.Step = at.Name
	pivot := slices.ContainsFunc(r.steps, func(p saga.Progress) bool { return p.Pivot && p.Step == at.Name })
	switch {
	case at.Operation == string(branch.Undo):
		f.Kind = UndoNotIdempotent
	case pivot:
		f.Kind = PivotNotRepeatable
	case at.Name != "" || r.state == saga.Succeeded:
		f.Kind = ActionNotIdempotent
	}
}

// plain is why the undisturbed run is none to go by.
func (r *run) plain() error {
	if r.state == saga.Succeeded {
		return nil
	}
	return fmt.Errorf("undisturbed, the saga has to succeed, and is %s: %w", r.state, errors.New(r.reason))
}
