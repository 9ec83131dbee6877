package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Mark is the highest token that has entered a resource.
type Mark struct {
	Token  interlock.Token // 0 if none has entered
	Source string          // who raised it, for people
	Raised time.Time       // when, by the store's clock; zero if not known
}

// Raise asks a store to raise a resource's mark.
type Raise struct {
	Resource string // 1 to MaxName bytes
	Token    interlock.Token
	Source   string // kept beside the mark, for people
	// Strict refuses an equal token too: each token enters once.
	Strict bool
	// Bypassed is called after an Enter that wrote, for each key that others changed
	// after the resource was last entered, without entering it; nil means that nobody
	// asks. A store that cannot see that does not call it.
	Bypassed func(key string)
}

// A Write is one change of a key in a key-value store.
type Write struct {
	Key    string
	Value  []byte
	Delete bool // remove Key; Value is ignored
}

// Fence guards data in a key-value store that also keeps the marks, so that
// checking a token and writing are one atomic step.
type Fence interface {
	// Enter refuses r.Token with a *interlock.StaleTokenError if a higher one
	// (or, if r.Strict, an equal one) has entered r.Resource; refuses it with
	// interlock.ErrImplausibleToken if its counter lies more than
	// interlock.MaxAhead beyond the store's clock; otherwise raises the mark to
	// it and applies writes. All of that is one atomic step, also when writes
	// is empty. Counter and hand-over number are compared as integers. An
	// empty key is a Bug; a store may also refuse keys that it needs itself
	// (Bug) or cannot write in one step (Definite), and then does nothing.
	//
	// Repeating it after an Uncertain answer converges if the writes do; with
	// r.Strict the repetition may find that the first one entered, and be
	// refused with Seen equal to Got.
	Enter(ctx context.Context, r Raise, writes ...Write) error
	// Mark shows the mark of a resource; one that nothing entered has Token 0.
	Mark(ctx context.Context, resource string) (Mark, error)
	// Rebase sets the mark to exactly `to`, which may be lower, and 0 for none,
	// and records from, to, reason and by durably in the same step. It returns
	// the mark that it replaced. The new mark's Source is [RebaseSource]. What is
	// implausible for Enter is for Rebase.
	Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (Mark, error)
}

// RebaseSource is the Source of a mark that was set by hand: it shows who did it
// and why wherever the mark is shown, and cannot be taken for a holder's.
func RebaseSource(by, reason string) string { return "rebase by " + by + ": " + reason }
