package tcctest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// Judge says what a run shows to be wrong; nil is nothing. Reference is the world after
// a transaction that was confirmed; nil is not known yet.
func (r *run) Judge(reference []string) *Finding {
	f := &Finding{Kind: r.Kind, Branch: r.Name, Scenario: r.Words}
	if r.CrashedAt != nil {
		r.blame(f)
	}
	if r.wrong != nil {
		return &Finding{Kind: InvariantBroken, Branch: r.wronged.Branch, Scenario: f.Scenario, Problem: r.afterwards()}
	}
	if r.Kind == LateTryAccepted && !r.Hangs { // other scenarios show what else is wrong
		return differing(f, "the late try took effect, and nothing takes it back", r.After, r.Late)
	}
	if r.Kind == TryVisible && !r.Hangs {
		return differing(f, "the try has changed what others see, and nothing was decided", r.seenBefore, r.seenAfter)
	}
	if r.freed != "" {
		f.Kind, f.Branch, f.Diff = FreedUnasked, "", r.freed
		f.Problem = "a sweep has changed what it was not told to free: nobody could be asked, or it was decided to confirm"
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

// afterwards says what the invariant has said, and when.
func (r *run) afterwards() string {
	if r.wronged.Branch == "" {
		return fmt.Sprintf("in the end: %v", r.wrong)
	}
	return fmt.Sprintf("behind the %s of %s: %v", r.wronged.Operation, r.wronged.Branch, r.wrong)
}

// refused finds a call that may not be refused, and was; again if it was done before.
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

// repeated is what is wrong with an operation that does not stand its repetition.
var repeated = map[branch.Operation]Kind{
	branch.Try: TryNotIdempotent, branch.Confirm: ConfirmNotIdempotent, branch.Cancel: CancelNotIdempotent,
}

// refusal is the finding of a call that was refused.
func (r *run) refusal(f *Finding, a rehearsal.Answer, again bool) *Finding {
	f.Branch = a.Name
	switch {
	case again:
		f.Kind = repeated[a.Operation]
		f.Problem = fmt.Sprintf("the first %s was done, and its repetition refused: %v", a.Operation, a.Err)
		return f
	case a.Operation == branch.Confirm:
		f.Kind = ConfirmRefuses
	case f.Kind != CancelNeedsHold && f.Kind != EmptyCancel:
		f.Kind = CancelIncomplete
	}
	f.Problem = fmt.Sprintf("the %s is refused, and the transaction a dead letter if it stays so: %v", a.Operation, a.Err)
	return f
}

// unended says why a transaction has not ended.
func (r *run) unended(f *Finding) *Finding {
	if f.Kind == "" || f.Kind == CancelIncomplete || f.Kind == OutcomeDiffers || r.Hangs {
		f.Kind, f.Branch = NeverEnds, r.Last
	}
	name, problem := r.Unended(fmt.Sprintf("after %v the transaction is %s", r.limit(), r.stands()))
	f.Branch, f.Problem = cmp.Or(name, f.Branch), problem
	return f
}

// stands is where the transaction does.
func (r *run) stands() string {
	if r.outcome.State == "" {
		return fmt.Sprintf("not decided, and Run has told: %v", r.said)
	}
	return string(r.outcome.State)
}

// untrue is the finding of a Run that has returned a wrong decision.
func (r *run) untrue(f *Finding, told tcc.Decision) *Finding {
	f.Kind, f.Branch = OutcomeDiffers, ""
	decision := "nothing was decided"
	if r.outcome.Decision != "" {
		decision = fmt.Sprintf("it was decided to %s", r.outcome.Decision)
	}
	f.Problem = fmt.Sprintf("Run has returned a decision to %s, and %s", told, decision)
	return f
}

// blame gives the finding of a run in which the engine has crashed to the call that it
// was at work on.
func (r *run) blame(f *Finding) {
	at := r.CrashedAt
	f.Scenario = fmt.Sprintf("%s, and the engine crashed %s, and another one went on", r.Words, at.Words)
	f.Branch = at.Name
	if kind, is := repeated[at.Operation]; is {
		f.Kind = kind
	}
	if r.Abandon {
		f.Scenario += ", nobody ran it again, and the time of the holds passed"
		if r.outcome.Decision == "" || r.outcome.Type == "unknown" { // it was decided because somebody asked
			f.Kind, f.Branch = HoldNeverExpires, ""
		}
	}
}

// compare looks for what differs in the worlds.
func (r *run) compare(f *Finding, reference []string) *Finding {
	state := r.outcome.State
	switch {
	case r.competed:
		return r.rivals(f, reference)
	case r.Alone && state == tcc.Confirmed:
		f.Kind, f.Problem = NeverReached, "Run has gone on though its context had ended, so it was confirmed, and the cancellation never called"
		return f
	case r.Alone && state == tcc.Cancelled:
		return differing(f, "the transaction was cancelled, and the branch has left the world changed", r.Before, r.After)
	case state == tcc.Cancelled && r.Name != "" && r.Delivered(branch.Try) < 2:
		return nil // it is given up at once, and was not repeated
	case state == tcc.Confirmed && reference != nil:
		return differing(f, "the transaction was confirmed, and the world is not as it is after an undisturbed one", reference, r.Final)
	case state == tcc.Cancelled:
		return differing(f, "the transaction was cancelled, and the world is not as it was", r.Initial, r.Final)
	case state == "" && r.Abandon:
		return differing(f, r.unasked(), r.Initial, r.Final)
	}
	return nil
}

// unasked returns the state of holds that have no decision.
func (r *run) unasked() string {
	text := "the time of the holds was over, they were swept, and nobody has asked what was decided"
	if r.sweeping != nil {
		text += fmt.Sprintf("; the last sweep said: %v", r.sweeping)
	}
	return text
}

// rivals compares the world with that after one transaction, if the other one got
// nothing; what both lead to is for the invariant to say.
func (r *run) rivals(f *Finding, reference []string) *Finding {
	for _, a := range r.Answers {
		if a.Transaction != id && a.Operation == branch.Confirm {
			return nil
		}
	}
	return differing(f, "somebody else got nothing, and the world is not as it is after an undisturbed transaction alone", reference, r.Final)
}

// differing is the finding if two looks at the world differ; without the second there
// was nothing to look at.
func differing(f *Finding, problem string, want, got []string) *Finding {
	f.Problem, f.Diff = problem, rehearsal.Diff(want, got)
	if got == nil || f.Diff == "" {
		return nil
	}
	return f
}

// Kind is what is wrong with a resource, or with the transaction.
type Kind string

// The kinds of findings.
const (
	// TryNotIdempotent: a try that is called twice under one key is not as if called
	// once, or refuses the second call.
	TryNotIdempotent Kind = "try not idempotent"
	// TryVisible: a try changes what others see, beside what is left for them.
	TryVisible Kind = "try is visible"
	// LateTryAccepted: a try that arrived behind its cancellation holds something, and
	// nothing will take that back.
	LateTryAccepted Kind = "late try accepted"
	// ConfirmNotIdempotent: a confirmation that is called twice is not as if called
	// once, or refuses the second call.
	ConfirmNotIdempotent Kind = "confirm not idempotent"
	// ConfirmRefuses: a branch that holds refuses to be confirmed, which it may not for
	// any reason.
	ConfirmRefuses Kind = "confirm refuses"
	// CancelIncomplete: something that was tried is left when it was cancelled, or the
	// cancellation refuses.
	CancelIncomplete Kind = "cancel incomplete"
	// CancelNotIdempotent: a cancellation that is called twice is not as if called once,
	// or refuses the second call.
	CancelNotIdempotent Kind = "cancel not idempotent"
	// CancelNeedsHold: a cancellation that is called with nil, because the answer of the
	// try was lost, leaves something of a try that held, or fails.
	CancelNeedsHold Kind = "cancel needs the hold"
	// EmptyCancel: the cancellation of what was never held gives something back, or
	// fails.
	EmptyCancel Kind = "empty cancel not harmless"
	// HoldNeverExpires: nobody decided, the time of the hold was over, and Sweep has left
	// something of it.
	HoldNeverExpires Kind = "hold never expires"
	// FreedUnasked: Sweep frees a hold that it was not told to free.
	FreedUnasked Kind = "freed unasked"
	// InvariantBroken: the scene's Invariant says so.
	InvariantBroken Kind = "invariant broken"
	// OutcomeDiffers: in the end the world is not what the decision says, or Run has told
	// something else than was decided.
	OutcomeDiffers Kind = "outcome differs"
	// NeverReached: no branch of the transaction is one of the resource, or nothing has
	// the branch cancelled, because Run does not end with its context.
	NeverReached Kind = "never reached"
	// NeverEnds: the transaction has not ended when the time of the run was up.
	NeverEnds Kind = "never ends"
)

// A Finding is one way in which a transaction does not stand what can happen to it.
type Finding struct {
	Kind     Kind
	Branch   string // its name, of NeverReached that of the resource; empty if it is not known which
	Scenario string // what went wrong in that run
	Problem  string // its outcome
	Diff     string // of the snapshots, as it should be (-) and as it is (+), a line each; may be empty
}

// String tells it on several lines.
func (f Finding) String() string {
	with := ""
	if f.Branch != "" {
		with = "branch " + f.Branch
	}
	return rehearsal.Report(string(f.Kind), with, f.Scenario, f.Problem, f.Diff)
}
