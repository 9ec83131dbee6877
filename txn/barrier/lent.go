package barrier

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
)

// An Answer is the answer to a call once the transaction is committed.
type Answer[O any] struct {
	Output O // of this do or an earlier one; the zero value if Refused is set
	// Refused is nil, or a branch.Fail: a [RefusedError], or [ErrCancelled].
	Refused error
}

// DoIn is [Do] in a transaction that the caller began. If it returns no error, commit the
// transaction and then send the answer, also if it is a refusal. The work of a refused fn is
// rolled back to a savepoint, and the refusal counts once it is committed.
//
// After an error the transaction must be rolled back. Once fn has begun, an error or a panic
// makes the transaction unable to commit. On MariaDB it is rolled back at once, and statements by
// the client's own handle then run outside of it. Nothing is retried.
//
// Until the transaction ends, the row is locked and other calls of the branch wait, also if the
// process is stopped. Interlock does not bound a transaction of the caller: use driver.Tx.Bound,
// idle_in_transaction_session_timeout on PostgreSQL, or idle_transaction_timeout on MariaDB.
func DoIn[O any](ctx context.Context, db driver.SQL, t Table, input any, fn func(ctx context.Context) (O, error)) (a Answer[O], err error) {
	l, c, err := t.checkLent(ctx, db, forward, fn != nil)
	if err == nil {
		c.hash, err = hash(c, input)
	}
	if err != nil {
		return a, err
	}
	f, err := l.enter(ctx, c, 0)
	if err != nil {
		return a, err
	}
	m, err := c.judge(f)
	if class, _ := branch.ClassOf(err); class == branch.ClassFail {
		return Answer[O]{Refused: err}, nil
	}
	if err == nil && m.verdict != run {
		a.Output, err = decode[O](c, f.result)
	}
	if err != nil || m.verdict != run {
		return a, err
	}
	err = l.runEffect(ctx, func() (err error) {
		a, err = withSavepoint(ctx, l, c, f, fn)
		return err
	})
	return a, err
}

// withSavepoint runs fn after a savepoint, so that its work can be rolled back.
func withSavepoint[O any](ctx context.Context, l ledger, c claim, f found, fn func(context.Context) (O, error)) (a Answer[O], err error) {
	point := savepoint(c)
	if _, err := l.Exec(ctx, `savepoint `+point); err != nil {
		return a, err
	}
	output, err := fn(ctx)
	if class, _ := branch.ClassOf(err); class != branch.ClassFail {
		if err == nil {
			a.Output, err = output, keep(ctx, l, c, f, output)
		}
		return a, err
	}
	if _, failed := l.Exec(ctx, `rollback to savepoint `+point); failed != nil {
		return a, failed
	}
	a.Refused = branch.Fail(&RefusedError{reason(err), err})
	return a, l.record(ctx, c, moves[f.previous][refusal].to, []byte(reason(err)))
}

// savepoint returns a name that is unique to the branch in the transaction.
func savepoint(c claim) string {
	sum := sha256.Sum256([]byte(c.Key()))
	return "interlock_barrier_" + hex.EncodeToString(sum[:8])
}

// ConfirmIn is [Confirm] in a transaction that the caller began. After an error it
// must be rolled back, as with [DoIn].
func ConfirmIn[O any](ctx context.Context, db driver.SQL, t Table, fn func(ctx context.Context, done O) error) error {
	return t.endIn(ctx, db, finish, fn != nil, func(c claim, f found) error {
		done, err := decode[O](c, f.result)
		if err != nil {
			return err
		}
		return fn(ctx, done)
	})
}

// UndoIn is [Undo] in a transaction that the caller began. After an error it must be
// rolled back, as with [DoIn].
func UndoIn[O any](ctx context.Context, db driver.SQL, t Table, fn func(ctx context.Context, done *O) error) error {
	return t.endIn(ctx, db, back, fn != nil, func(c claim, f found) error {
		done, err := outputIfKnown[O](c, f)
		if err != nil {
			return err
		}
		return fn(ctx, done)
	})
}

func (t Table) endIn(ctx context.Context, db driver.SQL, e event, effect bool, work func(c claim, f found) error) error {
	l, c, err := t.checkLent(ctx, db, e, effect)
	if err != nil {
		return err
	}
	f, err := l.enter(ctx, c, 0)
	if err != nil {
		return err
	}
	m, err := c.judge(f)
	if err != nil || m.verdict != run {
		return t.report(err)
	}
	return l.runEffect(ctx, func() error { return work(c, f) })
}

// checkLent checks the arguments before the database is used.
func (t Table) checkLent(ctx context.Context, db driver.SQL, e event, effect bool) (l ledger, c claim, err error) {
	if c, err = callOf(ctx, e); err != nil {
		return l, c, err
	}
	if db == nil || !effect {
		return l, c, failure.Bug("pass barrier", c.Key(), "a transaction and a function are required")
	}
	l, err = t.open(string(c.Operation), c.Key(), db)
	return l, c, err
}

// runEffect runs the function of a branch. If it fails, the transaction cannot commit, because the
// row would be wrong.
func (l ledger) runEffect(ctx context.Context, do func() error) error {
	return transact.Whole(ctx, l.SQL(), "the function of a branch failed: its row must not be committed", func(begin func()) error {
		begin()
		return do()
	})
}
