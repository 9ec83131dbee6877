package tcc

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Confirm makes the hold of the branch of [branch.From] final: units of [Table.Take] are sold, and
// units of [Table.Give] are added. fresh is false if it was already confirmed. If there is no hold,
// the error is a [*ViolationError] in a branch.Fail.
func (t Table) Confirm(ctx context.Context, db driver.SQL) (w Want, fresh bool, err error) {
	const op = "confirm"
	c, err := callOf(ctx, op)
	if err != nil {
		return w, false, err
	}
	l, err := t.open(op, c.Transaction, db)
	if err != nil {
		return w, false, err
	}
	changed, err := l.Exec(ctx, `update {holds} set state = 'confirmed', ask_ms = null, changed_ms = {millis now}
		where transaction_id = ? and branch = ? and state = 'held'`, c.Transaction, c.Branch)
	if err != nil {
		return w, false, err
	}
	is, err := l.read(ctx, c)
	switch {
	case err != nil:
		return w, false, err
	case is.state != stateConfirmed:
		return w, false, violation(c, op, is.state)
	}
	w = Want{Item: is.item, N: is.n}
	if changed == 0 {
		return w, false, nil
	}
	return w, true, l.settle(ctx, op, holdKinds[is.way].confirm, w, w.N, w.N, w.Item)
}

// read returns the hold of a call, and locks it. Its state is empty if there is none.
func (l ledger) read(ctx context.Context, c branch.Call) (is row, err error) {
	_, err = l.Row(ctx, `select state, way, item, n from {holds} where transaction_id = ? and branch = ? for update`,
		[]any{c.Transaction, c.Branch}, &is.state, &is.way, &is.item, &is.n)
	return is, err
}

// settle changes the item of a hold.
func (l ledger) settle(ctx context.Context, op, query string, w Want, args ...any) error {
	done, err := l.Exec(ctx, query, args...)
	if err == nil && done != 1 {
		err = &interlock.Error{Op: op, Name: w.Item, Kind: interlock.Definite, Err: errItemDeleted}
	}
	return err
}

// Cancel releases the hold of the branch of [branch.From]; fresh is false if there is none. A try of
// the branch that arrives later is refused. If the hold is confirmed, the error is a
// [*ViolationError] in a branch.Fail, and the transaction must be rolled back.
func (t Table) Cancel(ctx context.Context, db driver.SQL) (w Want, fresh bool, err error) {
	const op = "cancel"
	c, err := callOf(ctx, op)
	if err != nil {
		return w, false, err
	}
	l, err := t.open(op, c.Transaction, db)
	if err != nil {
		return w, false, err
	}
	var is row
	_, err = l.Row(ctx, `insert into {holds} {as present} (transaction_id, branch, way, item, n, state, was, calls, until_ms, ask_ms, changed_ms)
		values (?, ?, 'none', 'none', 0, 'blocked', 'none', 0, 0, null, {millis now})
		{or transaction_id, branch} calls = {old calls} + 1, was = {old state}, ask_ms = null,
			changed_ms = case when {old state} = 'held' then {new changed_ms} else {old changed_ms} end,
			state = case when {old state} = 'held' then 'cancelled' else {old state} end
		returning calls, was, way, item, n`, []any{c.Transaction, c.Branch}, &is.calls, &is.state, &is.way, &is.item, &is.n)
	switch {
	case err != nil:
		return w, false, err
	case is.state == stateConfirmed:
		return w, false, violation(c, op, is.state)
	case is.calls == 0 || is.state != stateHeld:
		return w, false, nil
	}
	w = Want{Item: is.item, N: is.n}
	return w, true, l.settle(ctx, op, holdKinds[is.way].cancel, w, w.N, w.Item)
}

func violation(c branch.Call, op, state string) error {
	return branch.Fail(&ViolationError{Transaction: c.Transaction, Branch: c.Branch, Operation: op, State: state})
}
