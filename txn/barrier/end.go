package barrier

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// Confirm answers a confirm or commit, of which ctx bears the call: it runs fn, with
// the output of what was done, in a transaction of its own, once, and commits it. Of a
// branch that was confirmed it does nothing. Of one that was not done, or was undone,
// it is a [ViolationError]. Other errors are as those of [Do], and leave the branch
// as it was; fn must not refuse.
func Confirm[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, tx T, done O) error) error {
	return end(ctx, db, t, finish, fn != nil, func(c claim, f found, tx driver.Tx[T]) error {
		done, err := decode[O](c, f.result)
		if err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native(), done))
	})
}

// Undo answers an undo, cancel or rollback, of which ctx bears the call: it runs fn in
// a transaction of its own, once, and commits it, if the branch was done, or if
// nobody knows whether a call to the outside has done it: then done is nil. Of a
// branch that was not done it runs nothing, and keeps what comes late from being
// done. Of one that was confirmed it is a [ViolationError]. Other errors are as those
// of [Do], and leave the branch as it was; fn must not refuse.
func Undo[T, O any](ctx context.Context, db driver.BeginnerAt[T], t Table, fn func(ctx context.Context, tx T, done *O) error) error {
	return end(ctx, db, t, back, fn != nil, func(c claim, f found, tx driver.Tx[T]) error {
		done, err := whatever[O](c, f)
		if err != nil {
			return err
		}
		return tx.Classify(fn(ctx, tx.Native(), done))
	})
}

// whatever is the output of what was done, nil if it is not known.
func whatever[O any](c claim, f found) (*O, error) {
	if !f.known {
		return nil, nil
	}
	done, err := decode[O](c, f.result)
	return &done, err
}

// end is Confirm and Undo.
func end[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, e event, effect bool,
	work func(c claim, f found, tx driver.Tx[T]) error) error {
	c, err := usable(ctx, db, e, effect)
	if err != nil {
		return err
	}
	return t.told(t.repeat(ctx, func() error {
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
