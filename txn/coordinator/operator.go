package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Names that saga, tcc and twopc share. Each package has aliases.

var (
	// ErrNone means that the journal has no transaction with this id. It is Definite.
	ErrNone = errors.New("there is no such transaction in the journal")
	// ErrMismatch means that the transaction with this id is another one, or that this process
	// lacks a part of its definition. The error is a [*MismatchError].
	ErrMismatch = errors.New("it is another transaction")
	// ErrState means that the state of the transaction does not allow the operation. The error is
	// a [*StateError].
	ErrState = errors.New("the transaction is in another state")
	// ErrNoOutput means that the step or branch has no known output, because it was not done.
	ErrNoOutput = errors.New("no output is known")
	// ErrOrder means that a record is invalid in the state of its transaction.
	ErrOrder = errors.New("it is invalid in this state")
	// ErrRecord means that the kind of a record is unknown.
	ErrRecord = errors.New("unknown kind of record: a newer version wrote it")
)

// A MismatchError is an [ErrMismatch] and a Bug. Nothing was done.
type MismatchError struct {
	ID      string
	Step    string // or branch; empty for the whole transaction
	Problem string
}

// Error returns the difference and the remedy.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("transaction %q: %s%s", e.ID, stepPrefix(e.Step), e.Problem)
}

func stepPrefix(step string) string {
	if step == "" {
		return ""
	}
	return fmt.Sprintf("step %q: ", step)
}

// Unwrap returns [ErrMismatch].
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// ErrorKind returns [interlock.Bug].
func (e *MismatchError) ErrorKind() interlock.ErrorKind { return interlock.Bug }

// A StateError is an [ErrState]. It is Definite; nothing was done.
type StateError struct {
	ID    string
	Op    string // the operation
	Step  string // its step or branch; empty for the whole transaction
	State State  // of the transaction
	Err   error  // the reason
}

// Error names the operation, the state and the reason.
func (e *StateError) Error() string {
	return fmt.Sprintf("%s transaction %q, which is %s: %s%v", e.Op, e.ID, e.State, stepPrefix(e.Step), e.Err)
}

// Unwrap returns [ErrState] and the reason.
func (e *StateError) Unwrap() []error { return []error{ErrState, e.Err} }

// ErrorKind returns [interlock.Definite].
func (e *StateError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// By names an operator who changes a transaction by hand, and the reason. The journal stores both.
type By struct {
	Actor  string `json:"actor"`  // 1 to 255 bytes
	Reason string `json:"reason"` // 1 to 1000 bytes
}

// Check returns a Bug if the actor or the reason is missing, too long, or not UTF-8.
func (b By) Check(op, id string) error {
	switch {
	case b.Actor == "" || len(b.Actor) > 255:
		return failure.Bug(op, id, "the actor has %d bytes; give 1 to 255", len(b.Actor))
	case b.Reason == "" || len(b.Reason) > MaxReason:
		return failure.Bug(op, id, "the reason has %d bytes; give 1 to %d", len(b.Reason), MaxReason)
	case !utf8.ValidString(b.Actor + b.Reason):
		return failure.Bug(op, id, "the actor or the reason is not UTF-8")
	}
	return nil
}

// State is the state of a transaction; each protocol has its own states.
type State string

// The states that all protocols share.
const (
	DeadLetter State = "DEAD_LETTER" // it cannot continue by itself: an operator must act
	Resolved   State = "RESOLVED"    // an operator has ended it without further calls
)

// ended has the states of transactions that have ended.
var ended = map[State]bool{"SUCCEEDED": true, "COMPENSATED": true, "CONFIRMED": true, "CANCELLED": true, "COMMITTED": true, "ABORTED": true, Resolved: true}

// Ended reports whether the transaction has ended, permanently.
func (s State) Ended() bool { return ended[s] }

// Final reports whether no further call is made unless an operator acts: the transaction has
// ended, or is a DEAD_LETTER.
func (s State) Final() bool { return s.Ended() || s == DeadLetter }

// JoinStates formats a list of states for messages.
func JoinStates(all []State) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(all), "[]"), " ", ", ")
}

// A Decision is the decision of a protocol for all branches of a transaction.
type Decision string

// Summary is the common part of the outcomes of all protocols. The command line and HTTP show it
// as JSON.
type Summary struct {
	ID       string      `json:"id"`
	Type     string      `json:"type,omitempty"` // the part after the protocol
	State    State       `json:"state,omitempty"`
	Decision Decision    `json:"decision,omitempty"` // empty without one, and for sagas
	Reason   string      `json:"reason,omitempty"`   // of an abort, cancellation or compensation, or why a saga is halted
	Halted   string      `json:"halted,omitempty"`   // why no calls are made: its owners crashed; empty if it is not halted
	Dead     []StepError `json:"dead,omitempty"`     // steps and branches that wait for an operator, in their order
	Failing  []StepError `json:"failing,omitempty"`  // steps and branches whose failing calls are repeated, if the journal has a record of them
	Skipped  []string    `json:"skipped,omitempty"`  // steps and branches that an operator has skipped
	Resolved By          `json:"resolved,omitzero"`  // the operator who has ended a dead letter; zero if none has
	Due      time.Time   `json:"due,omitzero"`       // time of the next turn; zero once it has ended
	Ended    time.Time   `json:"ended,omitzero"`     // by the store's clock; zero until it has ended, and for a dead letter
}

// SummaryOf returns a summary with the values in the head of a transaction.
func SummaryOf(head driver.Head) Summary {
	_, kind, _ := strings.Cut(head.Type, ":")
	return Summary{ID: head.Transaction, Type: kind, Due: head.Due.UTC(), Ended: head.Ended.UTC()}
}

// StepError is a step or a branch with an error.
type StepError struct {
	Step     string `json:"step"`
	Err      string `json:"error"`              // of the last recorded call
	Attempts int    `json:"attempts,omitempty"` // failed ones
}
