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
	if r.Kind == LateTryAccepted && !r.Hangs { // other plots show what else is wrong
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
