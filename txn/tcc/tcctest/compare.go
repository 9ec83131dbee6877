package tcctest

import (
	"fmt"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

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
