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

// missed finds out why a statement found no row, and was not to make one.
func (l ledger) missed(ctx context.Context, c claim) (found, error) {
	mark, excepted, there, err := l.mark(ctx)
	switch {
	case err != nil:
		return found{}, err
	case !there:
		return found{}, definite(c.Call, fmt.Errorf("the table of the low-water mark is empty: create it again with Table.Create"))
	case c.begun() < mark && !strings.Contains(excepted, needle(c.Transaction)):
		return found{}, definite(c.Call, ErrForgotten)
	case c.event == finish:
		return found{previous: absent}, nil
	}
	return found{}, retryable(c.Call, "the low-water mark was moved meanwhile")
}

// mark reads the low-water mark that calls are compared with, and its exceptions.
func (l ledger) mark(ctx context.Context) (mark int64, excepted string, there bool, err error) {
	there, err = l.Row(ctx, `select mark, excepted from {marks} {pg order by generation desc limit 1}{maria where only_row = 1 lock in share mode}`,
		nil, &mark, &excepted)
	return mark, excepted, there, err
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
		return m, branch.InProgress(time.Duration(f.remaining) * time.Microsecond)
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
func (l ledger) record(ctx context.Context, c claim, to state, result []byte) error {
	known := 0
	if to == tried {
		known = 1
	}
	n, err := l.Exec(ctx, `update {rows} set state = ?, known = ?, result = {?}, busy = 0, remaining = -1 where `+isRow,
		string(to), known, filled(result), c.Transaction, c.Branch, c.Step)
	if err == nil && n != 1 {
		return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Retryable,
			Err: fmt.Errorf("its row is gone: an error rolled the transaction back, and was ignored")}
	}
	return err
}

// filled is never nil: that would be NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
