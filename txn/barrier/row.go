package barrier

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
)

// found is what stood in a call's row before the call's statement.
type found struct {
	previous  state
	hash      []byte
	known     bool   // whether result is the output of what was done
	result    []byte // or the reason of a refusal
	remaining int64  // microseconds for which a call to the outside may be under way
	attempts  int64  // this one included
}

// enter sends the statement of c: it makes or changes the row, locks it until the
// transaction ends, and tells what was there.
func (l lender) enter(ctx context.Context, c claim, lease time.Duration) (f found, err error) {
	query, args := l.claim(c, lease)
	there := false
	err = l.Query(ctx, l.within(query), args, func(scan func(...any) error) error {
		there = true
		var previous string
		var known int
		err := scan(&previous, &f.hash, &known, &f.result, &f.remaining, &f.attempts)
		f.previous, f.known = state(previous), known != 0
		return err
	})
	if err == nil && !there {
		return l.missed(ctx, c)
	}
	return f, about(string(c.Operation), c.Key(), err)
}

// missed finds out why a statement found no row, and was not to make one.
func (l lender) missed(ctx context.Context, c claim) (found, error) {
	mark, excepted, there := int64(0), "", false
	err := l.Query(ctx, l.within(l.mark()), nil, func(scan func(...any) error) error {
		there = true
		return scan(&mark, &excepted)
	})
	switch {
	case err != nil:
		return found{}, about(string(c.Operation), c.Key(), err)
	case !there:
		return found{}, definite(c.Call, fmt.Errorf("the table of the low-water mark is empty: create it again with Table.Create"))
	case c.begun() < mark && !strings.Contains(excepted, needle(c.Transaction)):
		return found{}, definite(c.Call, ErrForgotten)
	case c.event == finish:
		return found{previous: absent}, nil
	}
	return found{}, retryable(c.Call, "the low-water mark was moved meanwhile")
}

// judge says what c does to the row that was found: nil if its function is to run, or
// if nothing is to be done, and otherwise the error that answers it.
func (c claim) judge(f found) (move, error) {
	all, ok := moves[f.previous]
	m := all[c.event]
	switch {
	case !ok:
		return m, definite(c.Call, fmt.Errorf("its row is %q, which this version does not know", string(f.previous)))
	case len(c.hash) > 0 && len(f.hash) > 0 && f.previous != absent && !bytes.Equal(c.hash, f.hash):
		return m, &MismatchError{c.Call}
	case f.remaining > 0 && (m.verdict == run || m.to != f.previous):
		return m, branch.Ongoing(time.Duration(f.remaining) * time.Microsecond)
	}
	switch m.verdict {
	case refuse:
		return m, branch.Fail(&RefusedError{Reason: string(f.result)})
	case late:
		return m, branch.Fail(definite(c.Call, ErrCancelled))
	case violation:
		return m, branch.Fail(&ViolationError{c.Call, string(f.previous)})
	}
	return m, nil
}

// changed reports whether the row is another than it was.
func (f found) changed(m move) bool { return m.verdict == run || m.to != f.previous }

// record writes the outcome of a branch that this transaction has the row of.
func (l lender) record(ctx context.Context, c claim, to state, result []byte) error {
	known := 0
	if to == tried {
		known = 1
	}
	n, err := l.exec(ctx, `update {rows} set state = ?, known = ?, result = {empty?}, busy = 0, remaining = -1 where `+isRow,
		string(to), known, filled(result), c.Transaction, c.Branch, c.Step)
	if err == nil && n != 1 {
		return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Retryable,
			Err: fmt.Errorf("its row is gone: the transaction was undone, by an error that was not heeded")}
	}
	return about(string(c.Operation), c.Key(), err)
}

// filled is never nil: that would be NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
