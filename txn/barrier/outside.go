package barrier

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

// DoOutside is [Do] for an effect that is not in the database. It commits that the
// branch is started, calls fn outside of any transaction, and then commits what fn
// returned. key is the same for all calls of the branch's operation: the target must
// take it as an idempotency key, because after a crash the next call asks it again.
//
// A refusal by the first call is remembered as one. A refusal by a later call is
// answered as one too, but it is no proof that the calls before it have done nothing:
// the branch is then undone if an undo comes. Any other error of fn is returned as it
// is, and leaves the branch in doubt.
//
// fn has [Table].Patience; meanwhile other calls of the branch get
// branch.InProgress. fn must return when its context ends. A target must refuse the key
// of a do for good once it has seen the undo's: a call that was given up may still be
// on its way there.
//
// An error that is Uncertain says that the outcome was not stored: the same call again
// finds it out.
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
	case !stood: // somebody else has answered meanwhile, or undone it
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
	if err != nil { // it was done, and cannot be stored
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

// ConfirmOutside is [Confirm] for an effect that is not in the database, as
// [DoOutside]. It calls fn with the same key until fn returns nil.
func ConfirmOutside[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, key string, done O) error) error {
	return endOutside(ctx, db, t, finish, fn != nil, func(ctx context.Context, c claim, f found) error {
		done, err := decode[O](c, f.result)
		if err != nil {
			return err
		}
		return fn(ctx, c.Key(), done)
	})
}

// UndoOutside is [Undo] for an effect that is not in the database, as [DoOutside]. It
// commits that the branch is being undone before it calls fn, so that nothing is done
// behind it; each call of it calls fn with the same key until fn has returned nil.
// done is nil if nobody knows whether it was done.
func UndoOutside[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, key string, done *O) error) error {
	return endOutside(ctx, db, t, back, fn != nil, func(ctx context.Context, c claim, f found) error {
		done, err := whatever[O](c, f)
		if err != nil {
			return err
		}
		return fn(ctx, c.Key(), done)
	})
}

// endOutside is ConfirmOutside and UndoOutside.
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
		return t.told(err)
	}
	if err := work(inside, c, f); err != nil {
		o.release(ctx, f)
		return err
	}
	// If it does not stand there any more somebody else has come as far.
	m := moves[f.previous][e]
	_, _, err = o.settle(ctx, `state = '`+string(m.to)+`', busy = 0`, m.via)
	return err
}
