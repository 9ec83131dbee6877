package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// An Operator helps sagas on by hand. It needs no definitions and owns no shard: what
// it appends stands behind what it has read, or it reads again. The saga is due at
// once then, for the owner of its shard. It is safe for concurrent use.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator makes an operator on a journal, which stays open.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// By is who does something to a saga, and why. Both are kept in the journal.
type By struct {
	Actor  string // 1 to 255 bytes
	Reason string // 1 to 1000 bytes
}

func (b By) check() error {
	switch {
	case b.Actor == "" || len(b.Actor) > 255:
		return fmt.Errorf("the actor has %d bytes; say in 1 to 255 who does it", len(b.Actor))
	case b.Reason == "" || len(b.Reason) > 1000:
		return fmt.Errorf("the reason has %d bytes; say in 1 to 1000 why", len(b.Reason))
	case strings.ToValidUTF8(b.Actor+b.Reason, "") != b.Actor+b.Reason:
		return errors.New("the actor or the reason is not UTF-8")
	}
	return nil
}

// ErrState: what an operator wants is not possible in the state that the saga is in.
// The error is a [*StateError].
var ErrState = errors.New("the saga is in another state")

// A StateError is an [ErrState]. It is Definite; nothing was done.
type StateError struct {
	ID    string
	Op    string // what was wanted
	Step  string // of what; empty if of the whole
	State State  // in which the saga is
	Err   error  // why it is not possible
}

// Error says what was wanted, and why it is not possible.
func (e *StateError) Error() string {
	about := ""
	if e.Step != "" {
		about = fmt.Sprintf(" step %q of", e.Step)
	}
	return fmt.Sprintf("%s%s saga %q, which is %s: %v", e.Op, about, e.ID, e.State, e.Err)
}

// Unwrap makes it an [ErrState], and gives the reason.
func (e *StateError) Unwrap() []error { return []error{ErrState, e.Err} }

// ErrorKind is [interlock.Definite].
func (e *StateError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Retry calls an undo that was given up again, or with an empty step all of them; the
// saga is UNDOING again. A step or an undo that waits for its next attempt is called now,
// and its attempts are counted from one; an empty step means each of those if no undo was
// given up. An input that is not nil, JSON, is what the step or its undo
// is called with from now on; that is possible for undos, and behind the pivot. A call
// with the input before it may have been done already, or be done yet. If its target
// compares inputs, as a barrier does ([branch.ErrOtherInput]), the step is then done with
// that input, and counts as such. Otherwise this is found out only if the process that
// made the call still lives. The hook Crossed reports it, and so do [Outcome].Crossed and
// the step's Err in [Replay], if the saga had not ended before.
func (o *Operator) Retry(ctx context.Context, id, step string, input json.RawMessage, by By) error {
	if input != nil && (!json.Valid(input) || len(input) > driver.MaxPayload/2 || step == "") {
		return bug("retry", id, fmt.Errorf("the input is not JSON, has more than %d bytes, or is for no step", driver.MaxPayload/2))
	}
	n := note{Actor: by.Actor, Reason: by.Reason, Input: input}
	return o.act(ctx, "retry", id, step, by, func(m *machine) (entries []journal.Entry, _ error) {
		if step == "" && !slices.ContainsFunc(m.steps, func(p progress) bool { return p.fate == dead }) {
			entries = m.retries(n)
		}
		if len(entries) == 0 {
			entries = []journal.Entry{record(recordRetry, step, n)}
		}
		return entries, nil
	})
}

// retries are the records that have each pending step called now.
func (m *machine) retries(n note) (entries []journal.Entry) {
	for i := range m.steps {
		if p := &m.steps[i]; m.pending(p) && len(entries) < driver.MaxRecords {
			entries = append(entries, record(recordRetry, p.key, n))
		}
	}
	return entries
}

// Skip goes on without an undo, whether it was given up or is tried still: somebody
// has taken care of what the step did. Behind the pivot it goes on without the step:
// the saga will have succeeded but for that. If nothing else is left to undo the saga
// has ended when Skip returns.
func (o *Operator) Skip(ctx context.Context, id, step string, by By) error {
	return o.act(ctx, "skip", id, step, by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordSkip, step, note{Actor: by.Actor, Reason: by.Reason})}, nil
	})
}

// Resolve closes a dead letter: whatever is left of it was taken care of. The saga is
// RESOLVED, for good, when Resolve returns.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.act(ctx, "resolve", id, "", by, func(*machine) ([]journal.Entry, error) {
		return []journal.Entry{record(recordResolved, "", note{Actor: by.Actor, Reason: by.Reason})}, nil
	})
}

// Now ends what the saga waits for: its start, a [Sleep], a [Signal], as if its time were
// up, or the time until something is tried again.
func (o *Operator) Now(ctx context.Context, id string, by By) error {
	n := note{Actor: by.Actor, Reason: by.Reason}
	return o.act(ctx, "hurry", id, "", by, func(m *machine) (entries []journal.Entry, err error) {
		if !m.start.IsZero() && len(m.steps) == 0 {
			entries = append(entries, record(recordNow, "", n))
		}
		for i := range m.steps {
			switch p := &m.steps[i]; {
			case p.fate == inFlight && p.wait:
				entries = append(entries, record(recordNow, p.key, n))
			case m.pending(p):
				entries = append(entries, record(recordRetry, p.key, n))
			}
		}
		if len(entries) == 0 {
			return nil, errors.New("it waits for nothing")
		}
		return entries[:min(len(entries), driver.MaxRecords)], nil
	})
}

// tries is how often somebody else may come first.
const tries = 10

// act appends what follows from a saga as it is, in the name of somebody.
func (o *Operator) act(ctx context.Context, op, id, step string, by By, follows func(*machine) ([]journal.Entry, error)) error {
	if err := by.check(); err != nil {
		return bug(op, id, err)
	}
	return o.append(ctx, op, id, step, follows)
}

// append appends what follows from a saga as it is; nothing is well, too.
func (o *Operator) append(ctx context.Context, op, id, step string, follows func(*machine) ([]journal.Entry, error)) (err error) {
	for range tries {
		// In doubt it may be what this one has done that somebody has appended behind.
		if err = o.once(ctx, op, id, step, follows); !errors.Is(err, journal.ErrConflict) || interlock.Kind(err) == interlock.Uncertain {
			return err
		}
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: err}
}

func (o *Operator) once(ctx context.Context, op, id, step string, follows func(*machine) ([]journal.Entry, error)) error {
	log, m, err := read(ctx, o.journal, id)
	if err != nil {
		return err
	}
	wrong := func(err error) error { return &StateError{ID: id, Op: op, Step: step, State: m.state, Err: err} }
	entries, err := follows(&m)
	if err != nil {
		return wrong(err)
	}
	after, err := m.with(entries...)
	if err != nil {
		return wrong(err)
	}
	if len(entries) == 0 {
		return nil
	}
	if after.state == Undoing && len(after.undoing()) == 0 || after.state == Resolved {
		entries = append(entries, after.ending())
	}
	if entries[len(entries)-1].Kind == recordEnd {
		return log.End(ctx, entries...)
	}
	return log.Append(ctx, o.now(), entries...)
}

// read is a saga as it stands in a journal.
func read(ctx context.Context, j *journal.Journal, id string) (*journal.Log, machine, error) {
	log, entries, err := j.Open(ctx, id)
	if err != nil {
		return nil, machine{}, err
	}
	if log == nil {
		return nil, machine{}, &interlock.Error{Op: "read saga", Name: id, Kind: interlock.Definite, Err: ErrNone}
	}
	if kind := log.Head().Type; !strings.HasPrefix(kind, protocol+":") {
		return nil, machine{}, &MismatchError{ID: id, Problem: fmt.Sprintf("it is a %q, and no saga: ask its protocol", kind)}
	}
	m, err := replay(entries)
	if err != nil {
		return nil, machine{}, bug("read saga", id, err)
	}
	return log, m, nil
}
