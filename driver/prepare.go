package driver

import (
	"context"
	"errors"
	"time"
)

// Vote is a participant's answer to Prepare.
type Vote int

const (
	// VoteNo: nothing is left of the branch, and nothing has to be told to it. It is
	// the zero value.
	VoteNo Vote = iota
	// VoteYes: the branch can be committed and rolled back, whatever crashes, until it
	// was.
	VoteYes
	// VoteReadOnly: the branch has changed nothing and has ended; nothing has to be
	// told to it.
	VoteReadOnly
)

// String is the vote in lower case.
func (v Vote) String() string {
	switch v {
	case VoteYes:
		return "yes"
	case VoteReadOnly:
		return "read only"
	}
	return "no"
}

// An XID names a branch of a distributed transaction at its participant.
type XID struct {
	Transaction string // 1 to MaxTransaction bytes; participants that hold less say so by a Bug
	Branch      string // the participant's name in the transaction, 1 to 30 bytes of letters, digits, - and _
}

// ErrHeuristic is the finding that a prepared branch was finished otherwise than
// decided, by a person or by the system: the transaction is not whole any more. It is
// Definite, and nothing mends it by itself.
var ErrHeuristic = errors.New("the branch was finished otherwise than decided")

// A Doubt is a prepared branch that waits for its decision.
type Doubt struct {
	XID   XID
	Since time.Time // when it was prepared, by the participant's clock; zero if it cannot tell
}

// A Participant finishes branches that were prepared, from any process and any
// session, and lists them. It finishes and lists those of its own namespace only.
// It is safe for concurrent use and retries nothing.
type Participant interface {
	// Commit makes what the branch did visible. It is idempotent: a branch that was
	// committed is committed. One that was rolled back, or of which nothing is known
	// and that has left no mark of having been committed, is an ErrHeuristic.
	Commit(ctx context.Context, x XID) error
	// Rollback takes back what the branch did, and makes sure, as far as the
	// participant can, that a Prepare which is still on its way votes no. It is
	// idempotent: of a branch that is not known nothing is left. One that was
	// committed is an ErrHeuristic.
	Rollback(ctx context.Context, x XID) error
	// InDoubt lists the branches that are prepared.
	InDoubt(ctx context.Context) ([]Doubt, error)
}
