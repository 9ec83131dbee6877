package tcctest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// Judge returns the finding of a run, or nil. Reference is the world after a confirmed
// transaction; nil if it is not known yet.
func (r *run) Judge(reference []string) *Finding {
	f := &Finding{Kind: r.Kind, Branch: r.Name, Scenario: r.Words}
	if r.CrashedAt != nil {
		r.blame(f)
	}
	if r.wrong != nil {
		return &Finding{Kind: InvariantBroken, Branch: r.wronged.Branch, Scenario: f.Scenario, Problem: r.afterwards()}
	}
	if r.Kind == LateTryAccepted && !r.Hangs { // other scenarios show other faults
		return differing(f, "the late try took effect, and nothing cancels it", r.After, r.Late)
	}
	if r.Kind == TryVisible && !r.Hangs {
		return differing(f, "the try changed what others see before a decision", r.seenBefore, r.seenAfter)
	}
	if r.freed != "" {
		f.Kind, f.Branch, f.Diff = FreedUnasked, "", r.freed
		f.Problem = "a sweep freed a hold without a decision to cancel"
		return f
	}
	if a, again := r.refused(); a.Err != nil {
		return r.refusal(f, a, again)
	}
	if i := slices.IndexFunc(r.told, func(d tcc.Decision) bool { return d != r.outcome.Decision }); i >= 0 {
		return r.untrue(f, r.told[i])
	}
	if asked := r.Abandon && r.outcome.State == ""; r.Hangs || !r.outcome.State.Final() && !asked {
		return r.unended(f)
	}
	return r.compare(f, reference)
}

// afterwards returns the error of the invariant, and the call before it.
func (r *run) afterwards() string {
	if r.wronged.Branch == "" {
		return fmt.Sprintf("at the end: %v", r.wrong)
	}
	return fmt.Sprintf("after the %s of %s: %v", r.wronged.Operation, r.wronged.Branch, r.wrong)
}

// refused returns a call that was refused and must not be; again reports whether it was done before.
func (r *run) refused() (refusal rehearsal.Answer, again bool) {
	done := map[rehearsal.Answer]bool{}
	for _, a := range r.Answers {
		key := rehearsal.Answer{Transaction: a.Transaction, Name: a.Name, Operation: a.Operation}
		switch {
		case a.Err == nil:
			done[key] = true
		case a.Refuses() && (done[key] || a.Operation != branch.Try):
			return a, done[key]
		}
	}
	return rehearsal.Answer{}, false
}

// repeated has the finding for an operation that does not tolerate repetition.
var repeated = map[branch.Operation]Kind{
	branch.Try: TryNotIdempotent, branch.Confirm: ConfirmNotIdempotent, branch.Cancel: CancelNotIdempotent,
}

// refusal returns the finding of a refused call.
func (r *run) refusal(f *Finding, a rehearsal.Answer, again bool) *Finding {
	f.Branch = a.Name
	switch {
	case again:
		f.Kind = repeated[a.Operation]
		f.Problem = fmt.Sprintf("the first %s was done, and its repetition was refused: %v", a.Operation, a.Err)
		return f
	case a.Operation == branch.Confirm:
		f.Kind = ConfirmRefuses
	case f.Kind != CancelNeedsHold && f.Kind != EmptyCancel:
		f.Kind = CancelIncomplete
	}
	f.Problem = fmt.Sprintf("the %s is refused, which makes the transaction a dead letter: %v", a.Operation, a.Err)
	return f
}

// unended returns why a transaction has not ended.
func (r *run) unended(f *Finding) *Finding {
	if f.Kind == "" || f.Kind == CancelIncomplete || f.Kind == OutcomeDiffers || r.Hangs {
		f.Kind, f.Branch = NeverEnds, r.Last
	}
	name, problem := r.Unended(fmt.Sprintf("after %v the transaction is %s", r.limit(), r.describeState()))
	f.Branch, f.Problem = cmp.Or(name, f.Branch), problem
	return f
}

// describeState describes the state of the transaction.
func (r *run) describeState() string {
	if r.outcome.State == "" {
		return fmt.Sprintf("not decided, and Run returned: %v", r.said)
	}
	return string(r.outcome.State)
}

// untrue returns the finding of a Run that has returned a wrong decision.
func (r *run) untrue(f *Finding, told tcc.Decision) *Finding {
	f.Kind, f.Branch = OutcomeDiffers, ""
	decision := "there is no decision"
	if r.outcome.Decision != "" {
		decision = fmt.Sprintf("the decision is to %s", r.outcome.Decision)
	}
	f.Problem = fmt.Sprintf("Run returned a decision to %s, and %s", told, decision)
	return f
}

// blame assigns the finding of a run with a crash to the call that the engine was making.
func (r *run) blame(f *Finding) {
	at := r.CrashedAt
	f.Scenario = fmt.Sprintf("%s, the engine crashed %s, and another one continued", r.Words, at.Words)
	f.Branch = at.Name
	if kind, found := repeated[at.Operation]; found {
		f.Kind = kind
	}
	if r.Abandon {
		f.Scenario += ", the transaction was not run again, and the holds expired"
		if r.outcome.Decision == "" || r.outcome.Type == "unknown" { // decided on request of a participant
			f.Kind, f.Branch = HoldNeverExpires, ""
		}
	}
}

// compare compares the worlds.
func (r *run) compare(f *Finding, reference []string) *Finding {
	state := r.outcome.State
	switch {
	case r.competed:
		return r.rivals(f, reference)
	case r.Alone && state == tcc.Confirmed:
		f.Kind, f.Problem = NeverReached, "Run continued after its context had ended, so it was confirmed, and the cancellation was never called"
		return f
	case r.Alone && state == tcc.Cancelled:
		return differing(f, "the transaction was cancelled, and an effect of the branch remains", r.Before, r.After)
	case state == tcc.Cancelled && r.Name != "" && r.Delivered(branch.Try) < 2:
		return nil // the try was given up at once, and was not repeated
	case state == tcc.Confirmed && reference != nil:
		return differing(f, "the transaction was confirmed, and the world differs from that after a run without faults", reference, r.Final)
	case state == tcc.Cancelled:
		return differing(f, "the transaction was cancelled, and the world has changed", r.Initial, r.Final)
	case state == "" && r.Abandon:
		return differing(f, r.unasked(), r.Initial, r.Final)
	}
	return nil
}

// unasked returns the state of holds that have no decision.
func (r *run) unasked() string {
	text := "the holds expired and were swept, and no sweep asked for the decision"
	if r.sweeping != nil {
		text += fmt.Sprintf("; the last sweep returned: %v", r.sweeping)
	}
	return text
}

// rivals compares the world with that after one transaction, if the other one confirmed nothing.
// The result of both is checked by the invariant only.
func (r *run) rivals(f *Finding, reference []string) *Finding {
	for _, a := range r.Answers {
		if a.Transaction != id && a.Operation == branch.Confirm {
			return nil
		}
	}
	return differing(f, "the other transaction confirmed nothing, and the world differs from that after one run without faults", reference, r.Final)
}

// differing returns the finding if two worlds differ, and nil if they do not or there is no second.
func differing(f *Finding, problem string, want, got []string) *Finding {
	f.Problem, f.Diff = problem, rehearsal.Diff(want, got)
	if got == nil || f.Diff == "" {
		return nil
	}
	return f
}

// Kind is the kind of a finding.
type Kind string

// The kinds of findings.
const (
	// TryNotIdempotent means that two calls of a try under one key differ from one, or that
	// it refuses the second.
	TryNotIdempotent Kind = "try not idempotent"
	// TryVisible means that a try changes [Scene.Visible].
	TryVisible Kind = "try is visible"
	// LateTryAccepted means that a try that arrived after its cancellation has a hold, which
	// is never cancelled.
	LateTryAccepted Kind = "late try accepted"
	// ConfirmNotIdempotent means that two confirmations differ from one, or that the second
	// is refused.
	ConfirmNotIdempotent Kind = "confirm not idempotent"
	// ConfirmRefuses means that a branch refuses a confirmation, which is never allowed.
	ConfirmRefuses Kind = "confirm refuses"
	// CancelIncomplete means that an effect of a try remains after the cancellation, or that
	// the cancellation is refused.
	CancelIncomplete Kind = "cancel incomplete"
	// CancelNotIdempotent means that two cancellations differ from one, or that the second
	// is refused.
	CancelNotIdempotent Kind = "cancel not idempotent"
	// CancelNeedsHold means that a cancellation without the hold, because the answer of the
	// try was lost, leaves an effect of the try, or fails.
	CancelNeedsHold Kind = "cancel needs the hold"
	// EmptyCancel means that the cancellation of a branch without a hold has an effect, or
	// fails.
	EmptyCancel Kind = "empty cancel not harmless"
	// HoldNeverExpires means that an effect of an expired hold without a decision remains
	// after Sweep.
	HoldNeverExpires Kind = "hold never expires"
	// FreedUnasked means that Sweep frees a hold without a decision to cancel.
	FreedUnasked Kind = "freed unasked"
	// InvariantBroken means that the scene's Invariant returns an error.
	InvariantBroken Kind = "invariant broken"
	// OutcomeDiffers means that the world does not match the decision, or that Run has
	// returned another decision than the recorded one.
	OutcomeDiffers Kind = "outcome differs"
	// NeverReached means that the transaction has no branch of the resource. Or the branch is
	// never cancelled, because Run does not end with its context.
	NeverReached Kind = "never reached"
	// NeverEnds means that the transaction has not ended within [Scene.Limit].
	NeverEnds Kind = "never ends"
)

// A Finding is a fault that a transaction does not tolerate.
type Finding struct {
	Kind     Kind
	Branch   string // its name; for NeverReached that of the resource; empty if unknown
	Scenario string // the fault of the run
	Problem  string // its outcome
	Diff     string // of the snapshots, expected lines (-) and actual ones (+); may be empty
}

// String formats the finding on several lines.
func (f Finding) String() string {
	with := ""
	if f.Branch != "" {
		with = "branch " + f.Branch
	}
	return rehearsal.Report(string(f.Kind), with, f.Scenario, f.Problem, f.Diff)
}
