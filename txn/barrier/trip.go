package barrier

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

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
