package stock

import (
	"cmp"
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// Adjust adds a.Delta to the supply of an item, or takes that many available units, once per
// a.Operation. A repeated call with the same operation and difference does nothing. If the
// operation was done with another difference, the error is a [ReusedError]. If there are too
// few units, it is a [ShortError], whose Want includes a.Floor. If the item has no supply, it
// is an [UnknownError]. A refused operation was not done and may be repeated.
func (t Table) Adjust(ctx context.Context, db driver.SQL, a Adjustment) error {
	const op = "adjust stock"
	if err := validateAdjustment(op, a); err != nil {
		return err
	}
	l, err := t.open(op, a.Item, db)
	if err != nil {
		return err
	}
	fresh, done, err := l.adjust(ctx, a)
	switch {
	case err == nil && !fresh:
		err = l.repeatedAdjustment(ctx, a)
	case err == nil && !done:
		err = l.adjustWithRoom(ctx, op, a)
	}
	return err
}

// repeatedAdjustment returns the result of an operation that was recorded before.
func (l ledger) repeatedAdjustment(ctx context.Context, a Adjustment) error {
	var delta int64
	found, err := l.Row(ctx, `select delta from {operations} where item = ? and operation = ? for update`,
		[]any{a.Item, a.Operation}, &delta)
	switch {
	case err != nil:
		return err
	case !found:
		return errForgotten
	case delta != a.Delta:
		return &ReusedError{ID: a.Operation}
	}
	return nil
}

// adjustWithRoom applies a recorded operation that had too few units, by taking units of
// expired reservations. If that is impossible, it removes the record.
func (l ledger) adjustWithRoom(ctx context.Context, op string, a Adjustment) error {
	item, refusal, err := l.lock(ctx, a.Item)
	var expired []heldLine
	switch {
	case err != nil:
		return err
	case refusal != nil:
	case item.Supply+a.Delta > driver.MaxQuantity:
		refusal = full(op, a.Item)
	default:
		expired, refusal, err = l.room(ctx, item, a.Take(), "")
	}
	if err != nil {
		return err
	}
	if refusal != nil {
		_, err := l.Exec(ctx, `delete from {operations} where item = ? and operation = ?`, a.Item, a.Operation)
		return cmp.Or(err, refusal)
	}
	if err := l.releaseExpired(ctx, expired); err != nil {
		return err
	}
	return l.move(ctx, a.Item, a.Delta, 0, 0)
}

// lower sets a supply below the number of held and sold units, by taking units of expired
// reservations.
func (l ledger) lower(ctx context.Context, item string, n int64) error {
	locked, _, err := l.lock(ctx, item) // the item exists: its supply was just read
	if err != nil {
		return err
	}
	expired, refusal, err := l.room(ctx, locked, locked.Supply-n, "")
	if err = cmp.Or(err, refusal); err != nil {
		return err
	}
	if err := l.releaseExpired(ctx, expired); err != nil {
		return err
	}
	return l.move(ctx, item, n-locked.Supply, 0, 0)
}
