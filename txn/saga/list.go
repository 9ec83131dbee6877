package saga

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Filter says which sagas are listed; the zero value is all.
type Filter struct {
	Type       string  // of this definition; empty is of any
	States     []State // in one of these states; none is any
	Unfinished bool    // without those that have ended; dead letters have not
	After      string  // whose ids come behind this one, in the order of bytes
}

// List goes through the sagas of a journal in the order of their ids, and says where
// each stands, whichever process drives it. It reads each that Type and Unfinished let pass; with
// Unfinished those that have ended cost nothing. A
// saga that cannot be read comes with an error, and the next one after it; an error
// without an id ends the list.
func List(ctx context.Context, j *journal.Journal, f Filter) iter.Seq2[Outcome, error] {
	return func(yield func(Outcome, error) bool) {
		heads := headsOf(ctx, j, f.After)
		if f.Unfinished {
			heads = j.Unfinished(ctx, f.After)
		}
		for h, err := range heads {
			if err != nil {
				yield(Outcome{}, err)
				return
			}
			if !f.list(ctx, j, h, yield) {
				return
			}
		}
	}
}

// headsOf goes through the transactions of a journal, page by page; an error ends it.
func headsOf(ctx context.Context, j *journal.Journal, behind string) iter.Seq2[driver.Head, error] {
	const page = 100
	return func(yield func(driver.Head, error) bool) {
		for {
			heads, err := j.Heads(ctx, behind, page)
			if err != nil {
				yield(driver.Head{}, err)
				return
			}
			for _, h := range heads {
				if behind = h.Transaction; !yield(h, nil) {
					return
				}
			}
			if len(heads) < page {
				return
			}
		}
	}
}

// list yields a saga that passes; it is false when nobody listens any more.
func (f Filter) list(ctx context.Context, j *journal.Journal, h driver.Head, yield func(Outcome, error) bool) bool {
	name, is := strings.CutPrefix(h.Type, protocol+":")
	if !is || f.Type != "" && f.Type != name && f.Type != base(name) || f.Unfinished && !h.Ended.IsZero() {
		return true
	}
	log, m, err := read(ctx, j, h.Transaction)
	if errors.Is(err, ErrNone) { // it was forgotten meanwhile
		return true
	}
	if err != nil {
		return yield(Outcome{ID: h.Transaction, Type: name}, err)
	}
	if len(f.States) > 0 && !slices.Contains(f.States, m.state) {
		return true
	}
	return yield(outcome(log.Head(), &m), nil)
}
