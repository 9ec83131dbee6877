package tcc

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/journal"
)

// By is who has something done to a transaction, and why. It stands in the journal.
type By struct {
	Actor  string // 1 to 255 bytes
	Reason string // 1 to 1000 bytes
}

// check says what is missing; nil is nothing.
func (b By) check(op, id string) error {
	switch {
	case b.Actor == "" || len(b.Actor) > 255:
		return failure.Bug(op, id, "the actor has %d bytes; say in 1 to 255 who does it", len(b.Actor))
	case b.Reason == "" || len(b.Reason) > longest:
		return failure.Bug(op, id, "the reason has %d bytes; say in 1 to %d why", len(b.Reason), longest)
	case !utf8.ValidString(b.Actor + b.Reason):
		return failure.Bug(op, id, "the actor or the reason is no UTF-8")
	}
	return nil
}

// An Operator is how a person helps a transaction that cannot go on by itself. It needs
// no resources, and owns nothing: what it writes is found by the owner of the shard. It
// is safe for concurrent use.
//
// Its methods refuse what the transaction's state does not allow, and one that there is
// not with an [ErrNone], both Definite. After an Uncertain error look whether it is
// written.
type Operator struct {
	journal *journal.Journal
	now     func() time.Time
}

// NewOperator makes the operator of a journal.
func NewOperator(j *journal.Journal) *Operator { return &Operator{journal: j, now: time.Now} }

// Retry has a dead branch called again, or all that are dead if branch is empty. One
// that is waiting is called now.
func (o *Operator) Retry(ctx context.Context, id, branch string, by By) error {
	return o.write(ctx, id, branch, recordRetry, by)
}

// Skip takes a branch for settled that is not: it is not called any more. The
// operator has settled it by hand.
func (o *Operator) Skip(ctx context.Context, id, branch string, by By) error {
	if branch == "" {
		return failure.Bug("skip branch", id, "which branch is not said")
	}
	return o.write(ctx, id, branch, recordSkip, by)
}

// Resolve ends a dead letter as it is.
func (o *Operator) Resolve(ctx context.Context, id string, by By) error {
	return o.write(ctx, id, "", recordResolved, by)
}

func (o *Operator) write(ctx context.Context, id, branch, kind string, by By) error {
	op := kind + " transaction"
	if err := by.check(op, id); err != nil {
		return err
	}
	const tries = 5 // its owner may be writing, too
	var err error
	for range tries {
		if err = o.once(ctx, op, id, record(kind, branch, order(by))); !errors.Is(err, journal.ErrConflict) {
			break
		}
	}
	return err
}

func (o *Operator) once(ctx context.Context, op, id string, e journal.Entry) error {
	log, entries, err := o.journal.Open(ctx, id)
	switch {
	case err != nil:
		return err
	case log == nil || !strings.HasPrefix(log.Head().Type, protocol):
		return none(op, id)
	}
	is, err := replay(entries)
	if err != nil {
		return bug(op, id, err)
	}
	if _, err := is.with(e); err != nil {
		return refuse(op, id, err)
	}
	if e.Kind == recordResolved {
		return log.End(ctx, e, journal.Entry{Kind: recordEnd})
	}
	return log.Append(ctx, o.now(), e)
}

// Unfinished goes through all transactions that have not ended, in the order of their ids:
// dead letters, and those under way. Those that have ended cost nothing.
func (o *Operator) Unfinished(ctx context.Context) iter.Seq2[Outcome, error] {
	return o.UnfinishedAfter(ctx, "")
}

// UnfinishedAfter is Unfinished from after an id, for lists in parts.
func (o *Operator) UnfinishedAfter(ctx context.Context, id string) iter.Seq2[Outcome, error] {
	return func(yield func(Outcome, error) bool) {
		for h, err := range o.journal.Unfinished(ctx, id) {
			var out Outcome
			if err == nil {
				out, err = o.look(ctx, h)
			}
			if (err != nil || out.ID != "") && !yield(out, err) {
				return
			}
		}
	}
}

// look is empty for what has ended, or is of another protocol.
func (o *Operator) look(ctx context.Context, h driver.Head) (Outcome, error) {
	if !h.Ended.IsZero() || !strings.HasPrefix(h.Type, protocol) {
		return Outcome{}, nil
	}
	head, is, err := read(ctx, o.journal, "list transactions", h.Transaction)
	if err != nil || !head.Ended.IsZero() {
		if errors.Is(err, ErrNone) {
			err = nil
		}
		return Outcome{}, err
	}
	return is.outcome(head), nil
}
