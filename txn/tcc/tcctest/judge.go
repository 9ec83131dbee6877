package tcctest

import (
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// judge says what a run shows to be wrong; nil is nothing. Reference is the world after
// a transaction that was confirmed; nil is not known yet.
func (r *run) judge(reference []string) *Finding {
	f := &Finding{Kind: r.kind, Branch: r.branch, Scenario: r.words}
	if r.crashedAt != nil {
		r.blame(f)
	}
	if r.wrong != nil {
		return &Finding{Kind: InvariantBroken, Branch: r.wronged.Branch, Scenario: f.Scenario, Problem: r.afterwards()}
	}
	if r.kind == LateTryAccepted && !r.hangs { // other plots show what else is wrong
		return differing(f, "the late try took effect, and nothing takes it back", r.after, r.late)
	}
	if r.kind == TryVisible && !r.hangs {
		return differing(f, "the try has changed what others see, and nothing was decided", r.seenBefore, r.seenAfter)
	}
	if r.freed != "" {
		f.Kind, f.Branch, f.Diff = FreedUnasked, "", r.freed
		f.Problem = "a sweep has changed what it was not told to free: nobody could be asked, or it was decided to confirm"
		return f
	}
	if a, again := r.refused(); a.err != nil {
		return r.refusal(f, a, again)
	}
	if i := slices.IndexFunc(r.told, func(d tcc.Decision) bool { return d != r.outcome.Decision }); i >= 0 {
		return r.untrue(f, r.told[i])
	}
	if asked := r.abandon && r.outcome.State == ""; r.hangs || !r.outcome.State.Final() && !asked {
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
func (r *run) refused() (refusal answer, again bool) {
	done := map[answer]bool{}
	for _, a := range r.answers {
		key := answer{a.transaction, a.branch, a.operation, nil}
		switch {
		case a.err == nil:
			done[key] = true
		case a.refuses() && (done[key] || a.operation != branch.Try):
			return a, done[key]
		}
	}
	return answer{}, false
}

// repeated is what is wrong with an operation that does not stand its repetition.
var repeated = map[branch.Operation]Kind{
	branch.Try: TryNotIdempotent, branch.Confirm: ConfirmNotIdempotent, branch.Cancel: CancelNotIdempotent,
}

// refusal is the finding of a call that was refused.
func (r *run) refusal(f *Finding, a answer, again bool) *Finding {
	f.Branch = a.branch
	switch {
	case again:
		f.Kind = repeated[a.operation]
		f.Problem = fmt.Sprintf("the first %s was done, and its repetition refused: %v", a.operation, a.err)
		return f
	case a.operation == branch.Confirm:
		f.Kind = ConfirmRefuses
	case f.Kind != CancelNeedsHold && f.Kind != EmptyCancel:
		f.Kind = CancelIncomplete
	}
	f.Problem = fmt.Sprintf("the %s is refused, and the transaction a dead letter if it stays so: %v", a.operation, a.err)
	return f
}

// unended says why a transaction has not ended.
func (r *run) unended(f *Finding) *Finding {
	if f.Kind == "" || f.Kind == CancelIncomplete || f.Kind == OutcomeDiffers || r.hangs {
		f.Kind, f.Branch = NeverEnds, r.last
	}
	if r.hangs {
		f.Problem = "a call does not return when its context ends, or leaves a goroutine that waits for ever"
		return f
	}
	f.Problem = fmt.Sprintf("after %v the transaction is %s", r.limit(), r.stands())
	if i := len(r.answers) - 1; i >= 0 && r.answers[i].err != nil {
		f.Branch, f.Problem = r.answers[i].branch, fmt.Sprintf("%s, and the last call said: %v", f.Problem, r.answers[i].err)
	}
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
	at := r.crashedAt
	f.Scenario = fmt.Sprintf("%s, and the engine crashed %s, and another one went on", r.words, at.Words)
	f.Branch = at.Name
	if kind, is := repeated[branch.Operation(at.Operation)]; is {
		f.Kind = kind
	}
	if r.abandon {
		f.Scenario += ", nobody ran it again, and the time of the holds passed"
		if r.outcome.Decision == "" || r.outcome.Type == "unknown" { // it was decided because somebody asked
			f.Kind, f.Branch = HoldNeverExpires, ""
		}
	}
}
