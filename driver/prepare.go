package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Vote is a participant's answer to Prepare.
type Vote int

const (
	// VoteNo: nothing is left of the branch, and it needs no decision. It is
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

// The limits of an XID: a branch has to be named by the 64 bytes of gtrid and the 64
// of bqual that XA has, and by the 200 of a Postgres gid, next to a namespace of at most
// MaxXIDNamespace bytes.
const (
	MaxXIDTransaction = 40
	MaxXIDBranch      = 30
	MaxXIDNamespace   = 20
)

// An XID names a branch of a distributed transaction at its participant.
type XID struct {
	Transaction string // 1 to MaxXIDTransaction bytes out of letters, digits and - . _ ~ : /
	Branch      string // the participant's name in the transaction, 1 to MaxXIDBranch bytes out of letters, digits, - and _
}

// Check is nil if the XID keeps to its limits, and else an error that names what does
// not. Participants check it before they begin, and answer with an interlock.Bug.
func (x XID) Check() error {
	if err := spelled("transaction", x.Transaction, MaxXIDTransaction, "-._~:/"); err != nil {
		return err
	}
	return spelled("branch", x.Branch, MaxXIDBranch, "-_")
}

// spelled says what is wrong with a part of an XID.
func spelled(part, name string, most int, signs string) error {
	if len(name) == 0 || len(name) > most {
		return fmt.Errorf("the %s of an XID has %d bytes; it takes 1 to %d", part, len(name), most)
	}
	for i := range len(name) {
		c := name[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte(signs, c) >= 0 {
			continue
		}
		return fmt.Errorf("the %s %q of an XID has byte %q; it takes letters, digits and %s", part, name, c, signs)
	}
	return nil
}

// ErrHeuristic is the finding that a prepared branch was finished against the
// decision, by a person or by the system: the transaction is not whole any more. It is
// Definite, and needs a person.
var ErrHeuristic = errors.New("the branch was finished against its decision")

// An InDoubt is a prepared branch that waits for its decision.
type InDoubt struct {
	XID   XID
	Since time.Time // when it was prepared, by the participant's clock; zero if it cannot tell
}

// A Participant finishes branches that were prepared, from any process and any
// session, and lists them. It finishes and lists those of its own namespace only.
// It is safe for concurrent use and retries nothing. After an error of Commit or Rollback
// of whatever kind, but ErrHeuristic, the branch may be in doubt still: ask again.
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
	InDoubt(ctx context.Context) ([]InDoubt, error)
}

// A Preparing is a branch while the user works in it: what the coordinator ends it by.
// One of its methods is called, once; Abandon may follow any of them, and then frees
// what is left on this side. It is used by one goroutine at a time.
type Preparing interface {
	// Prepare ends the work and promises that it can be committed and rolled back,
	// whatever crashes. The user must not use the session any more. A participant
	// may hold it until the branch is committed or rolled back, for a bounded time:
	// see package driver/mysql. The vote counts if there is no error. With VoteNo
	// nothing is left of the branch, nor after an error that is Definite, or
	// Retryable if another branch may do better, as after a deadlock. After one that
	// is Uncertain it may be prepared, and needs Participant.Rollback.
	Prepare(ctx context.Context) (Vote, error)
	// CommitOne commits a branch that is the only one of its transaction, without
	// preparing it. Whether it was done is unknown only if the error is Uncertain.
	CommitOne(ctx context.Context) error
	// Abandon takes back what the branch did, if it was neither prepared nor
	// committed, and frees the session, even if ctx has ended. It is idempotent.
	Abandon(ctx context.Context) error
}

// A Preparer is a participant in which a process opens branches of its own. T is what
// the user works with in there: a pgx.Tx, a *sql.Conn, a client.
type Preparer[T any] interface {
	Participant
	// Begin opens branch x (XA has to know its name from the start). Nothing of it is
	// seen by others, and nothing of it outlasts the session, before Prepare.
	Begin(ctx context.Context, x XID) (T, Preparing, error)
}
