package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/journal"
)

// RecordEnd is the kind of a transaction's last record.
const RecordEnd = "end"

// The bounds of a reason, and of the error of a repeated call, in bytes.
const (
	MaxReason  = 1000
	MaxFailing = 500
)

// Truncate returns text as the journal stores it: valid UTF-8 of at most most bytes, or cut and then
// marked by an ellipsis.
func Truncate(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Record returns a record with data as JSON. It panics if data cannot be encoded.
func Record(kind, step string, data any) journal.Entry {
	text, err := Marshal(data)
	if err != nil {
		panic(err)
	}
	return journal.Entry{Kind: kind, Step: step, Data: text}
}

// Marshal is json.Marshal without escapes for HTML, which could make an output several times as
// long.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Records reads and changes the transactions of one protocol. M is the state after their records,
// O its public outcome.
type Records[M, O any] struct {
	Protocol string                                         // the part of types before the colon
	With     func(m M, entries ...journal.Entry) (M, error) // the state after more records
	State    func(m M) State
	Outcome  func(t Transaction[M]) O
}

// A Transaction is a transaction in the journal.
type Transaction[M any] struct {
	Head    driver.Head
	Log     *journal.Log
	Entries []journal.Entry
	State   M
}

// Type returns the user's part of a type of this protocol, and false for other protocols.
func (r Records[M, O]) Type(kind string) (string, bool) {
	return strings.CutPrefix(kind, r.Protocol+":")
}

// Read reads a transaction. The error is an [ErrNone] if it does not exist, and a
// [*MismatchError] if it is one of another protocol.
func (r Records[M, O]) Read(ctx context.Context, j *journal.Journal, op, id string) (t Transaction[M], err error) {
	t.Log, t.Entries, err = j.Open(ctx, id)
	switch {
	case err != nil:
		return t, err
	case t.Log == nil:
		return t, &interlock.Error{Op: op, Name: id, Kind: interlock.Definite, Err: ErrNone}
	}
	t.Head = t.Log.Head()
	if _, own := r.Type(t.Head.Type); !own {
		return t, &MismatchError{ID: id, Problem: fmt.Sprintf("it is a %q, not a transaction of %s", t.Head.Type, r.Protocol)}
	}
	if t.State, err = r.With(t.State, t.Entries...); err != nil {
		return t, failure.Bug(op, id, "%w", err)
	}
	return t, nil
}

// Look reads the outcome of a transaction. Its errors are those of Read.
func (r Records[M, O]) Look(ctx context.Context, j *journal.Journal, op, id string) (o O, err error) {
	t, err := r.Read(ctx, j, op, id)
	if err != nil {
		return o, err
	}
	return r.Outcome(t), nil
}

// tries bounds the attempts after conflicts.
const tries = 10

// Change reads a transaction and appends the records that follows returns. It repeats both after
// a conflict with another writer. No records change nothing. If follows rejects the state, or the
// state does not allow the records, the error is a [*StateError]. The transaction is due at once.
func (r Records[M, O]) Change(ctx context.Context, j *journal.Journal, op, id, step string,
	follows func(t Transaction[M]) ([]journal.Entry, error)) (err error) {
	for range tries {
		err = r.change(ctx, j, op, id, step, follows)
		// After an Uncertain conflict the records of this change may precede the other writer's.
		if !errors.Is(err, journal.ErrConflict) || interlock.Kind(err) == interlock.Uncertain {
			return err
		}
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: err}
}

func (r Records[M, O]) change(ctx context.Context, j *journal.Journal, op, id, step string,
	follows func(t Transaction[M]) ([]journal.Entry, error)) error {
	t, err := r.Read(ctx, j, op, id)
	if err != nil {
		return err
	}
	entries, err := follows(t)
	if err == nil {
		_, err = r.With(t.State, entries...)
	}
	switch {
	case interlock.Kind(err) == interlock.Bug:
		return err
	case err != nil:
		return &StateError{ID: id, Op: op, Step: step, State: r.State(t.State), Err: err}
	case len(entries) == 0:
		return nil
	case entries[len(entries)-1].Kind == RecordEnd:
		return t.Log.End(ctx, entries...)
	}
	return t.Log.Append(ctx, time.Now(), entries...)
}

// A Filter selects transactions; the zero value selects all.
type Filter struct {
	Type       string  // of this type, in any version; empty means any
	States     []State // in one of these states; empty means any
	Unfinished bool    // without ended ones; dead letters are unfinished
	After      string  // ids after this one, in the order of bytes
}

// List iterates over transactions in the order of their ids. It reads each that passes Type and
// Unfinished. With Unfinished, or with States that have not ended, ended transactions cost
// nothing. A transaction that cannot be read is yielded with its id and an error; any other error
// ends the list.
func (r Records[M, O]) List(ctx context.Context, j *journal.Journal, f Filter) iter.Seq2[O, error] {
	f.Unfinished = f.Unfinished || len(f.States) > 0 && !slices.ContainsFunc(f.States, State.Ended)
	heads := Heads(ctx, j, f.After)
	if f.Unfinished {
		heads = j.Unfinished(ctx, f.After)
	}
	return func(yield func(O, error) bool) {
		for t, err := range r.each(ctx, j, "list transactions", heads, f.wants) {
			var o O
			switch {
			case t.Head.Transaction == "": // the last one
			case err == nil && (f.Unfinished && !t.Head.Ended.IsZero() || len(f.States) > 0 && !slices.Contains(f.States, r.State(t.State))):
				continue
			default:
				o = r.Outcome(t)
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// Ended iterates over the transactions that ended at or after a time of the store's clock, in the
// order of their ids. One that cannot be read is yielded with its head and an error; an error
// without a head ends it.
func (r Records[M, O]) Ended(ctx context.Context, j *journal.Journal, since time.Time) iter.Seq2[Transaction[M], error] {
	return r.each(ctx, j, "reconcile transactions", Heads(ctx, j, ""), func(h driver.Head, _ string) bool {
		return !h.Ended.IsZero() && !h.Ended.Before(since)
	})
}

// each reads the transactions of the wanted heads. One that cannot be read is yielded with its head and an
// error; an error without a head ends the iteration.
func (r Records[M, O]) each(ctx context.Context, j *journal.Journal, op string, heads iter.Seq2[driver.Head, error],
	wanted func(h driver.Head, name string) bool) iter.Seq2[Transaction[M], error] {
	return func(yield func(Transaction[M], error) bool) {
		for h, err := range heads {
			if err != nil {
				yield(Transaction[M]{}, err)
				return
			}
			if name, own := r.Type(h.Type); !own || !wanted(h, name) {
				continue
			}
			t, err := r.Read(ctx, j, op, h.Transaction)
			switch {
			case errors.Is(err, ErrNone): // it was forgotten meanwhile
				continue
			case err != nil && ctx.Err() != nil:
				yield(Transaction[M]{}, err)
				return
			case err != nil:
				t.Head = h
			}
			if !yield(t, err) {
				return
			}
		}
	}
}

// versionMark precedes the version number in a type.
const versionMark = "@v"

func (f Filter) wants(h driver.Head, name string) bool {
	number, versioned := strings.CutPrefix(name, f.Type+versionMark)
	versioned = versioned && number != "" && strings.Trim(number, "0123456789") == ""
	return (f.Type == "" || f.Type == name || versioned) && !(f.Unfinished && !h.Ended.IsZero())
}

// Heads iterates over the heads of a journal in the order of their ids, page by page. An error
// ends it.
func Heads(ctx context.Context, j *journal.Journal, after string) iter.Seq2[driver.Head, error] {
	const page = 100
	return func(yield func(driver.Head, error) bool) {
		for {
			heads, err := j.Heads(ctx, after, page)
			if err != nil {
				yield(driver.Head{}, err)
				return
			}
			for _, h := range heads {
				if after = h.Transaction; !yield(h, nil) {
					return
				}
			}
			if len(heads) < page {
				return
			}
		}
	}
}

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
