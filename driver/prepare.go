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
	// VoteNo means that the branch has left nothing and needs no decision. It is the zero
	// value.
	VoteNo Vote = iota
	// VoteYes means that the branch can be committed and can be rolled back, even after a
	// crash, until one of the two has happened.
	VoteYes
	// VoteReadOnly means that the branch changed nothing and has ended. It needs no decision.
	VoteReadOnly
)

// String returns the vote in lower case.
func (v Vote) String() string {
	switch v {
	case VoteYes:
		return "yes"
	case VoteReadOnly:
		return "read only"
	}
	return "no"
}

// Limits of an XID. XA names a branch by 64 bytes of gtrid and 64 bytes of bqual, and
// Postgres by a gid of 200 bytes. A namespace of at most MaxXIDNamespace bytes has to fit
// as well.
const (
	MaxXIDTransaction = 40
	MaxXIDBranch      = 30
	MaxXIDNamespace   = 20
)

// An XID names a branch of a distributed transaction at its participant.
type XID struct {
	Transaction string // 1 to MaxXIDTransaction bytes: letters, digits and - . _ ~ : /
	Branch      string // the participant's name in the transaction, 1 to MaxXIDBranch bytes: letters, digits, - and _
}

// Check returns an error if a part of the XID is out of its limits. Participants check it
// before they begin and return the error as an interlock.Bug.
func (x XID) Check() error {
	if err := spelled("transaction", x.Transaction, MaxXIDTransaction, "-._~:/"); err != nil {
		return err
	}
	return spelled("branch", x.Branch, MaxXIDBranch, "-_")
}

// spelled returns an error if a part of an XID is invalid.
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

// ErrHeuristic means that a person or the system finished a prepared branch against the
// decision. The transaction is no longer atomic. The error is Definite, and an operator must
// resolve it.
var ErrHeuristic = errors.New("the branch was finished against its decision")

// An InDoubt is a prepared branch that waits for its decision.
type InDoubt struct {
	XID   XID
	Since time.Time // when it was prepared, by the participant's clock; zero if not known
}

// A Participant finishes and lists prepared branches of its own namespace. It works from any
// process and any session. It is safe for concurrent use and never retries. After an error of
// Commit or Rollback other than ErrHeuristic, the branch may still be in doubt: repeat the
// call.
type Participant interface {
	// Commit makes the changes of the branch visible. It is idempotent: committing a committed
	// branch succeeds. If the branch was rolled back, or is unknown without a record of its
	// commit, the error is ErrHeuristic.
	Commit(ctx context.Context, x XID) error
	// Rollback discards the changes of the branch. As far as the participant can, it also
	// ensures that a Prepare still in transit votes no. It is idempotent: rolling back an
	// unknown branch succeeds. If the branch was committed, the error is ErrHeuristic.
	Rollback(ctx context.Context, x XID) error
	// InDoubt lists the prepared branches.
	InDoubt(ctx context.Context) ([]InDoubt, error)
}

// A Preparing is an open branch. The coordinator ends it by calling one of its methods, once.
// Abandon may follow any other method and then frees local resources. It is used by one
// goroutine at a time.
type Preparing interface {
	// Prepare ends the work and promises that the branch can be committed and can be rolled
	// back, even after a crash. The session must not be used any more. A participant may keep
	// the session until the branch is committed or rolled back, for a bounded time; see package
	// driver/mysql.
	//
	// The vote is valid only without an error. After VoteNo or a Definite error, nothing is
	// left of the branch. The same holds after a Retryable error; another branch may then
	// succeed, for example after a deadlock. After an Uncertain error the branch may be
	// prepared, and needs Participant.Rollback.
	Prepare(ctx context.Context) (Vote, error)
	// CommitOne commits the only branch of a transaction without preparing it. The outcome is
	// unknown only if the error is Uncertain.
	CommitOne(ctx context.Context) error
	// Abandon discards the changes of a branch that was neither prepared nor committed, and
	// frees the session, even if ctx has ended. It is idempotent.
	Abandon(ctx context.Context) error
}

// A Preparer is a participant in which a process opens its own branches. T is the handle that
// the user works with in a branch: a pgx.Tx, a *sql.Conn or a client.
type Preparer[T any] interface {
	Participant
	// Begin opens branch x. (XA requires the name from the start.) Until Prepare, the changes
	// of the branch are invisible to others and do not survive the session.
	Begin(ctx context.Context, x XID) (T, Preparing, error)
}
