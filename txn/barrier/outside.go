package barrier

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

// DoOutside is [Do] for an effect outside of the database. It commits that the branch is started,
// calls fn outside of any transaction, and then commits fn's result. key is the same for all calls
// of the branch's operation. The target must use it as an idempotency key, because after a crash
// the next call repeats fn.
//
// A refusal by fn is stored and returned. If it is not that of the first call, earlier calls may
// have had an effect: an undo then runs. Any other error of fn is returned unchanged and leaves
// the branch in doubt.
//
// fn must return when its context ends, after [Table].Patience. Until then other calls of the
// branch get branch.InProgress. Once a target has received the key of the undo, it must always
// reject that of the do: an abandoned call may still arrive.
//
// After an Uncertain error the outcome is not stored: repeat the call.
func DoOutside[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, input any,
	fn func(ctx context.Context, key string) (O, error)) (output O, err error) {
	var none O
	c, err := usable(ctx, db, forward, fn != nil)
	if err == nil {
		c.hash, err = hash(c, input)
	}
	if err != nil {
		return none, err
	}
	o, inside, leave := setOut(ctx, db, t, c)
	defer leave()
	f, calls, err := o.begin(ctx)
	if err != nil {
		return none, err
	}
	if !calls {
		return decode[O](c, f.result)
	}
	output, because := fn(inside, c.Key())
	if class, _ := branch.ClassOf(because); because != nil && class != branch.ClassFail {
		o.release(ctx, f)
		return none, because
	}
	f, stood, err := store(ctx, o, output, because)
	switch {
	case err != nil:
		return none, err
	case !stood: // another call has answered or undone it meanwhile
		return stored[O](c, f)
	case because != nil:
		return none, branch.Fail(&RefusedError{reason(because), because})
	}
	return output, nil
}

// store stores the outcome of an outside call, unless another call has done so.
func store[T, O any](ctx context.Context, o trip[T], output O, because error) (f found, stood bool, err error) {
	if because != nil {
		return o.settle(ctx, `state = case when attempts = 1 then 'refused' else 'doubted' end, result = {?}, busy = 0`,
			started, []byte(reason(because)))
	}
	result, err := encode(o.claim, output)
	if err != nil { // it was done, and its output cannot be stored
		return f, false, branch.Unknown(err)
	}
	return o.settle(ctx, `state = 'tried', known = 1, result = {?}, busy = 0`, started, filled(result))
}

// stored returns the answer of a row.
func stored[O any](c claim, f found) (output O, err error) {
	m, err := c.judge(f)
	switch {
	case err != nil:
		return output, err
	case m.verdict == run: // the row is gone
		return output, branch.Unknown(definite(c.Call, ErrForgotten))
	}
	return decode[O](c, f.result)
}

// ConfirmOutside is [Confirm] for an effect outside of the database; see [DoOutside]. Each call of
// it calls fn with the same key until fn has returned nil.
func ConfirmOutside[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, key string, done O) error) error {
	return endOutside(ctx, db, t, finish, fn != nil, func(ctx context.Context, c claim, f found) error {
		done, err := decode[O](c, f.result)
		if err != nil {
			return err
		}
		return fn(ctx, c.Key(), done)
	})
}

// UndoOutside is [Undo] for an effect outside of the database; see [DoOutside]. It commits that
// the branch is being undone before it calls fn, so that no do runs after it. Each call of it
// calls fn with the same key until fn has returned nil. done is nil if the outcome of the do is
// unknown.
func UndoOutside[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, key string, done *O) error) error {
	return endOutside(ctx, db, t, back, fn != nil, func(ctx context.Context, c claim, f found) error {
		done, err := outputIfKnown[O](c, f)
		if err != nil {
			return err
		}
		return fn(ctx, c.Key(), done)
	})
}

// endOutside answers ConfirmOutside and UndoOutside.
func endOutside[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, e event, effect bool,
	work func(ctx context.Context, c claim, f found) error) error {
	c, err := usable(ctx, db, e, effect)
	if err != nil {
		return err
	}
	o, inside, leave := setOut(ctx, db, t, c)
	defer leave()
	f, calls, err := o.begin(ctx)
	if err != nil || !calls {
		return t.report(err)
	}
	if err := work(inside, c, f); err != nil {
		o.release(ctx, f)
		return err
	}
	// If the row has another state by now, another call has ended the branch as well.
	m := moves[f.previous][e]
	_, _, err = o.settle(ctx, `state = '`+string(m.to)+`', busy = 0`, m.via)
	return err
}

// trip is an outside call.
type trip[T any] struct {
	db driver.BeginnerAt[T]
	t  Table
	claim
}

// setOut starts the time of the function before that of its row, so that it ends first.
func setOut[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, c claim) (trip[T], context.Context, context.CancelFunc) {
	c.outside = true
	inside, cancel := context.WithTimeout(ctx, t.patience())
	return trip[T]{db, t, c}, inside, cancel
}

// begin commits that a call is about to be made, and reports whether it is to be made.
func (o trip[T]) begin(ctx context.Context) (f found, calls bool, err error) {
	err = o.t.repeat(ctx, func() error {
		return within(ctx, o.db, o.t, o.claim, func(_ driver.Tx[T], l ledger) (changed bool, err error) {
			if f, err = l.enter(ctx, o.claim, o.t.patience()); err != nil {
				return false, err
			}
			m, err := o.judge(f)
			calls = m.verdict == run
			return f.changed(m), err
		})
	})
	return f, calls, err
}

// settleTimeout bounds the writes after a call, which ignore the caller's cancellation.
const settleTimeout = 5 * time.Second

// settle changes the row if it is still in the state from, and reports whether it was. If not, it
// returns the row.
func (o trip[T]) settle(ctx context.Context, set string, from state, args ...any) (f found, stood bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	args = append(args, o.Transaction, o.Branch, o.Step)
	err = o.t.repeat(ctx, func() error {
		return within(ctx, o.db, o.t, o.claim, func(_ driver.Tx[T], l ledger) (bool, error) {
			n, err := l.Exec(ctx, `update {rows} set `+set+` where `+isRow+` and state = '`+string(from)+`'`, args...)
			if stood = n > 0; err == nil && !stood {
				f, err = l.look(ctx, o.claim)
			}
			return stood, err
		})
	})
	if err != nil { // the call was made
		err = branch.Unknown(&interlock.Error{Op: string(o.Operation), Name: o.Key(), Kind: interlock.Uncertain, Err: err})
	}
	return f, stood, err
}

// release permits other outside calls of the branch. If it fails, they wait for the rest of this
// one's time.
func (o trip[T]) release(ctx context.Context, f found) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	_ = o.t.repeat(ctx, func() error {
		return within(ctx, o.db, o.t, o.claim, func(_ driver.Tx[T], l ledger) (bool, error) {
			n, err := l.Exec(ctx, `update {rows} set busy = 0 where `+isRow+` and attempts = ?`,
				o.Transaction, o.Branch, o.Step, f.attempts)
			return n > 0, err
		})
	})
}

// look reads a row without locking it.
func (l ledger) look(ctx context.Context, c claim) (f found, err error) {
	f.previous = absent
	known := 0
	_, err = l.Row(ctx, `select state, hash, known, result, attempts from {rows} where `+isRow,
		[]any{c.Transaction, c.Branch, c.Step}, (*string)(&f.previous), &f.hash, &known, &f.result, &f.attempts)
	f.known = known != 0
	return f, err
}
