package barrier

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Do answers a do, try or prepare, of which ctx bears the call: it runs fn in a
// transaction of its own if none of its branch has had an effect, stores what fn
// returned, and commits both. input is what the call came with, []byte as it is or
// anything else as its JSON; the output is stored as JSON, at most
// driver.MaxPayload bytes. fn must not end the transaction, and may run several
// times, of which one is committed. Do returns:
//
//   - the output, and no error, if fn ran and was committed, now or before;
//   - a [RefusedError] if fn returned an error that is a branch.Fail, now or before.
//     What it did is rolled back, and the refusal is committed instead;
//   - [ErrCancelled] if the branch was undone, [ErrForgotten], or a [MismatchError]:
//     fn was not run;
//   - branch.InProgress if a call to the outside is under way for the branch;
//   - a branch.Retry if nothing was committed, and the database undid it because of
//     others more often than [Table].Attempts;
//   - an Uncertain error if COMMIT was sent and not answered: the same call again finds
//     what is so;
//   - any other error of fn, as it is, after a rollback.
//
// A rollback ignores the cancellation of ctx and has a bound of its own. It is also
// done if fn panics.
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
		return none, t.told(err)
	}
	return output, nil
}

// once does c in a transaction, and tells whether it changed anything.
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

// keep stores the output of what was done, unless the row says it already.
func keep[O any](ctx context.Context, l ledger, c claim, f found, output O) error {
	result, err := encode(c, output)
	if err != nil || len(result) == 0 && f.previous == absent {
		return err
	}
	return l.record(ctx, c, tried, result)
}

// remember commits a refusal, after what was refused is rolled back. If somebody else
// was faster with the same call that one's answer counts.
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
