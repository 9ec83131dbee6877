package barrier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
)

// usable checks the arguments before the database is used.
func usable[T any](ctx context.Context, db driver.BeginnerAt[T], e event, effect bool) (claim, error) {
	c, err := callOf(ctx, e)
	switch {
	case err != nil:
		return c, err
	case !effect:
		return c, failure.Bug("pass barrier", c.Key(), "there is no function to run")
	case db == nil:
		return c, failure.Bug("pass barrier", c.Key(), "there is no database")
	}
	return c, nil
}

// within runs work in a transaction, and commits it if it changed anything.
func within[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, c claim,
	work func(tx driver.Tx[T], l ledger) (changed bool, err error)) error {
	return transact.Do(ctx, transact.At(db, t.Level), c.Key(), func(tx driver.Tx[T]) error {
		l, err := t.open(string(c.Operation), c.Key(), tx)
		if err == nil {
			err = l.Failed(t.bound(ctx, tx))
		}
		if err != nil {
			return err
		}
		changed, err := work(tx, l)
		if err == nil && !changed {
			return transact.ErrNothing
		}
		return err
	})
}

// waits are the pauses between two runs of a transaction.
var waits = backoff.Policy{First: 10 * time.Millisecond, Max: 500 * time.Millisecond}

// repeat runs do again while the database rolls it back because of other transactions.
func (t Table) repeat(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		class, _ := branch.ClassOf(err)
		if err == nil || interlock.Kind(err) != interlock.Retryable || class != branch.ClassUnknown ||
			n >= t.attempts() || !waits.Wait(ctx, n) {
			return withClass(err)
		}
	}
}

// report calls the alarm if err is a violation. It returns err.
func (t Table) report(err error) error {
	var v *ViolationError
	if t.Alarm != nil && errors.As(err, &v) {
		t.Alarm(v)
	}
	return err
}

// found is the contents of a call's row before the call's statement.
type found struct {
	previous  state
	hash      []byte
	known     bool   // result is the output of the do
	result    []byte // or the reason of a refusal
	remaining int64  // microseconds for which an outside call may be under way
	attempts  int64  // with this one
}

// missed returns why a statement found no row and inserted none.
func (l ledger) missed(ctx context.Context, c claim) (found, error) {
	mark, excepted, ok, err := l.mark(ctx)
	switch {
	case err != nil:
		return found{}, err
	case !ok:
		return found{}, definite(c.Call, fmt.Errorf("the table of the low-water mark is empty: create it again with Table.Create"))
	case c.begun() < mark && !strings.Contains(excepted, exceptionKey(c.Transaction)):
		return found{}, definite(c.Call, ErrForgotten)
	case c.event == finish: // the branch may have no row
		if f, err := l.look(ctx, c); err != nil || f.previous == absent {
			return f, err
		}
	}
	return found{}, &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Retryable,
		Err: errors.New("the low-water mark was moved during the call")}
}

// mark reads the low-water mark and its exceptions.
func (l ledger) mark(ctx context.Context) (mark int64, excepted string, found bool, err error) {
	found, err = l.Row(ctx, `select mark, excepted from {marks} {pg order by generation desc limit 1}{maria where only_row = 1 lock in share mode}`,
		nil, &mark, &excepted)
	return mark, excepted, found, err
}

// judge returns what c does to the row that was found. The error is the answer to the call;
// it is nil if the function runs or if there is nothing to do.
func (c claim) judge(f found) (move, error) {
	all, ok := moves[f.previous]
	m := all[c.event]
	switch {
	case !ok:
		return m, definite(c.Call, fmt.Errorf("its row has the state %q, which this version does not know", string(f.previous)))
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

// changed reports whether m has changed the row.
func (f found) changed(m move) bool { return m.verdict == run || m.to != f.previous }

// record writes the outcome of a branch whose row this transaction has locked.
func (l ledger) record(ctx context.Context, c claim, to state, result []byte) error {
	known := 0
	if to == tried {
		known = 1
	}
	n, err := l.Exec(ctx, `update {rows} set state = ?, known = ?, result = {?}, busy = 0, remaining = -1 where `+isRow,
		string(to), known, filled(result), c.Transaction, c.Branch, c.Step)
	if err == nil && n != 1 {
		return &interlock.Error{Op: string(c.Operation), Name: c.Key(), Kind: interlock.Retryable,
			Err: fmt.Errorf("its row is gone: the transaction was rolled back after an error that was ignored")}
	}
	return err
}

// filled returns b, or an empty slice for nil, which would be NULL.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Confirm answers a confirm or commit. The call is that of ctx. If the branch was done, Confirm
// runs fn once, with the output of the do, in a transaction of its own, and commits. If the
// branch is already confirmed, it does nothing. If the branch was not done or was undone, it
// returns a [ViolationError]. Other errors are those of [Do], and leave the branch unchanged; fn
// must not refuse.
func Confirm[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, tx T, done O) error) error {
	return end(ctx, db, t, finish, fn != nil, func(c claim, f found, tx driver.Tx[T]) error {
		done, err := decode[O](c, f.result)
		if err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native(), done))
	})
}

// Undo answers an undo, cancel or rollback. The call is that of ctx. If the branch was done, or
// the outcome of an outside call is unknown, Undo runs fn once in its own transaction, and
// commits. done is nil if the outcome is unknown. If the branch was not done, it runs nothing
// and blocks a do that arrives later. If the branch was confirmed, it returns a
// [ViolationError]. Other errors are those of [Do], and leave the branch unchanged; fn must not
// refuse.
func Undo[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, tx T, done *O) error) error {
	return end(ctx, db, t, back, fn != nil, func(c claim, f found, tx driver.Tx[T]) error {
		done, err := outputIfKnown[O](c, f)
		if err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native(), done))
	})
}

// outputIfKnown returns the output of the do, or nil if it is unknown.
func outputIfKnown[O any](c claim, f found) (*O, error) {
	if !f.known {
		return nil, nil
	}
	done, err := decode[O](c, f.result)
	return &done, err
}

// end answers Confirm and Undo.
func end[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, e event, effect bool,
	work func(c claim, f found, tx driver.Tx[T]) error) error {
	c, err := usable(ctx, db, e, effect)
	if err != nil {
		return err
	}
	return t.report(t.repeat(ctx, func() error {
		return within(ctx, db, t, c, func(tx driver.Tx[T], l ledger) (bool, error) {
			f, err := l.enter(ctx, c, 0)
			if err != nil {
				return false, err
			}
			m, err := c.judge(f)
			if err == nil && m.verdict == run {
				err = work(c, f, tx)
			}
			return f.changed(m), err
		})
	}))
}

// Do answers a do, try or prepare. The call is that of ctx. If no call of the branch has had an
// effect, Do runs fn in a transaction of its own, stores fn's output, and commits both. input is
// the input of the call: []byte, or a value that is encoded as JSON. The output is stored as JSON
// of at most 1 MiB. fn must not end the transaction. It may run several times;
// one run is committed. Do returns:
//
//   - the output, if fn was committed, now or by an earlier call;
//   - a [RefusedError], if fn returned a branch.Fail, now or in an earlier call: its work is
//     rolled back, and the refusal is committed;
//   - [ErrCancelled] if the branch was undone, [ErrForgotten], or a [MismatchError]: fn was not
//     run;
//   - branch.InProgress, if an outside call of the branch is under way;
//   - a branch.Retry, if nothing was committed because the database rolled back [Table].Attempts
//     runs in favour of other transactions;
//   - an Uncertain error, if COMMIT was sent and not answered: repeat the call to get the outcome;
//   - any other error of fn, unchanged, after a rollback.
//
// The rollback ignores the cancellation of ctx and has its own bound. It also follows a panic of
// fn.
func Do[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, input any,
	fn func(ctx context.Context, tx T) (O, error)) (output O, err error) {
	c, err := usable(ctx, db, forward, fn != nil)
	if err == nil {
		c.hash, err = hash(c, input)
	}
	if err != nil {
		return output, err
	}
	err = t.repeat(ctx, func() error {
		var refused error
		err := within(ctx, db, t, c, func(tx driver.Tx[T], l ledger) (changed bool, err error) {
			output, changed, err = once(ctx, l, c, func() (O, error) {
				output, err := fn(ctx, tx.Native())
				if class, _ := branch.ClassOf(err); class == branch.ClassFail {
					refused = err
				}
				return output, tx.Classify(err)
			})
			return changed, err
		})
		if refused != nil {
			output, err = remember[T, O](ctx, db, t, c, refused)
		}
		return err
	})
	if err != nil {
		var none O
		return none, t.report(err)
	}
	return output, nil
}

// once answers c in a transaction, and reports whether it changed anything.
func once[O any](ctx context.Context, l ledger, c claim, fn func() (O, error)) (output O, changed bool, err error) {
	f, err := l.enter(ctx, c, 0)
	if err != nil {
		return output, false, err
	}
	m, err := c.judge(f)
	if err != nil {
		return output, false, err
	}
	if m.verdict != run {
		output, err = decode[O](c, f.result)
		return output, false, err
	}
	output, err = fn()
	if err != nil {
		return output, true, err
	}
	return output, true, keep(ctx, l, c, f, output)
}

// keep stores the output of the do, unless the row has it already.
func keep[O any](ctx context.Context, l ledger, c claim, f found, output O) error {
	result, err := encode(c, output)
	if err != nil || len(result) == 0 && f.previous == absent {
		return err
	}
	return l.record(ctx, c, tried, result)
}

// remember commits a refusal after the rollback of the refused work. If the same call was answered
// by another process meanwhile, it returns that answer.
func remember[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, c claim, because error) (output O, err error) {
	var answer error
	c.event, c.result = refusal, []byte(reason(because))
	err = within(ctx, db, t, c, func(_ driver.Tx[T], l ledger) (changed bool, err error) {
		f, err := l.enter(ctx, c, 0)
		if err != nil {
			return false, err
		}
		m, judged := c.judge(f)
		if answer = judged; answer == nil {
			output, answer = decode[O](c, f.result)
		}
		if changed = f.changed(m) && m.verdict == refuse && f.remaining == 0; changed {
			answer = branch.Fail(&RefusedError{string(c.result), because})
		}
		return changed, nil
	})
	if err == nil {
		err = answer
	}
	return output, err
}
