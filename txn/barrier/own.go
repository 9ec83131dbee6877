package barrier

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

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
