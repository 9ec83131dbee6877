package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Mark is the highest token that a resource has accepted.
type Mark struct {
	Token  interlock.Token // 0 if none was accepted
	Source string          // the holder that raised it, for people
	Raised time.Time       // by the store's clock; zero if not known
}

// Raise is a request to raise the mark of a resource.
type Raise struct {
	Resource string // 1 to MaxName bytes
	Token    interlock.Token
	Source   string // kept beside the mark, for people
	// Strict rejects an equal token too: each token enters once.
	Strict bool
	// Bypassed is called after an Enter that wrote. It receives each key that another client
	// changed since the last Enter, without entering the resource. Nil disables the check. A
	// store that cannot detect such changes never calls it.
	Bypassed func(key string)
}

// A Write is one change to a key of a key-value store.
type Write struct {
	Key    string
	Value  []byte
	Delete bool // remove Key; Value is ignored
}

// Fence guards data in a key-value store that also keeps the marks. Checking a token and
// writing are therefore one atomic step.
type Fence interface {
	// Enter raises the mark of r.Resource to r.Token and applies writes, in one atomic step
	// with these checks, also if writes is empty. If the resource has accepted a higher token
	// (with r.Strict, also an equal one), the error is a *interlock.StaleTokenError. If the
	// token's counter is more than interlock.MaxAhead ahead of the store's clock, the error is
	// interlock.ErrImplausibleToken. Counter and hand-over number are compared as integers.
	//
	// An empty key is a Bug. A store may also refuse keys that it reserves (Bug), or that it
	// cannot write in one step (Definite). After a refusal nothing has changed.
	//
	// Repeating Enter after an Uncertain error converges if the writes do. With r.Strict, the
	// repetition may find that the first attempt entered: then it is refused with Seen equal to
	// Got.
	Enter(ctx context.Context, r Raise, writes ...Write) error
	// Mark returns the mark of a resource, with Token 0 if it has accepted none.
	Mark(ctx context.Context, resource string) (Mark, error)
	// Rebase sets the mark to exactly `to`, which may be lower than the current mark, or 0 for
	// none. In the same step it durably records the old mark, to, reason and by. It returns the
	// mark that it replaced. The new mark's Source is [RebaseSource]. Tokens that are
	// implausible for Enter are implausible for Rebase.
	Rebase(ctx context.Context, resource string, to interlock.Token, reason, by string) (Mark, error)
}

// RebaseSource returns the Source of a mark that an operator set. It shows the operator and the
// reason wherever the mark is shown, and differs from the source of every holder.
func RebaseSource(by, reason string) string { return "rebase by " + by + ": " + reason }
