package tcctest

import "github.com/interlock-dev/interlock/txn/internal/rehearsal"

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
