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

// Truncate returns text as the journal stores it: valid UTF-8, cut after most bytes and then
// marked by an ellipsis.
func Truncate(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
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
// state does not allow the records, the error is a [*StateError]. The transaction is due at once,
// by now.
func (r Records[M, O]) Change(ctx context.Context, j *journal.Journal, now func() time.Time, op, id, step string,
	follows func(t Transaction[M]) ([]journal.Entry, error)) (err error) {
	for range tries {
		err = r.change(ctx, j, now, op, id, step, follows)
		// After an Uncertain conflict the records of this change may precede the other writer's.
		if !errors.Is(err, journal.ErrConflict) || interlock.Kind(err) == interlock.Uncertain {
			return err
		}
	}
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Retryable, Err: err}
}

func (r Records[M, O]) change(ctx context.Context, j *journal.Journal, now func() time.Time, op, id, step string,
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
	return t.Log.Append(ctx, now(), entries...)
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
		for h, err := range heads {
			if err != nil {
				var none O
				yield(none, err)
				return
			}
			if name, own := r.Type(h.Type); !own || !f.passes(name) || f.Unfinished && !h.Ended.IsZero() {
				continue
			}
			t, err := r.Read(ctx, j, "list transactions", h.Transaction)
			switch {
			case errors.Is(err, ErrNone): // it was forgotten meanwhile
				continue
			case err != nil:
				t.Head = h
			case f.Unfinished && !t.Head.Ended.IsZero(), len(f.States) > 0 && !slices.Contains(f.States, r.State(t.State)):
				continue
			}
			if !yield(r.Outcome(t), err) {
				return
			}
		}
	}
}

// Ended iterates over the transactions that ended at or after a time of the store's clock, in the
// order of their ids. One that cannot be read is yielded with its head and an error; an error
// without a head ends it.
func (r Records[M, O]) Ended(ctx context.Context, j *journal.Journal, since time.Time) iter.Seq2[Transaction[M], error] {
	return func(yield func(Transaction[M], error) bool) {
		for h, err := range Heads(ctx, j, "") {
			if err != nil {
				yield(Transaction[M]{}, err)
				return
			}
			if _, own := r.Type(h.Type); !own || h.Ended.IsZero() || h.Ended.Before(since) {
				continue
			}
			t, err := r.Read(ctx, j, "reconcile transactions", h.Transaction)
			if errors.Is(err, ErrNone) { // it was forgotten meanwhile
				continue
			}
			if t.Head = h; !yield(t, err) {
				return
			}
		}
	}
}

// versionMark precedes the version number in a type.
const versionMark = "@v"

func (f Filter) passes(name string) bool {
	return f.Type == "" || f.Type == name || strings.HasPrefix(name, f.Type+versionMark)
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
