package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// Confirm makes a reservation permanent: its units are sold. It may come late: an expired
// reservation can be confirmed unless others have taken units of it. In that case the error is
// a [SettledError] with driver.StockExpired, and nothing is sold. A repeated Confirm does
// nothing. For a cancelled reservation the error is a [SettledError], for an unknown one an
// [UnknownError].
func (t Table) Confirm(ctx context.Context, db driver.SQL, id string) error {
	return t.settle(ctx, db, "confirm", id, driver.StockConfirmed)
}

// Cancel releases the units of a reservation. A repeated Cancel does nothing, nor does
// cancelling an expired or unknown reservation. An unknown one can still be held later: a Hold
// that is still in flight lasts until it expires. For a confirmed reservation the error is a
// [SettledError].
func (t Table) Cancel(ctx context.Context, db driver.SQL, id string) error {
	return t.settle(ctx, db, "cancel", id, driver.StockCancelled)
}

func (t Table) settle(ctx context.Context, db driver.SQL, op, id string, to driver.StockState) error {
	if err := validateName(op, "a reservation", id); err != nil {
		return err
	}
	l, err := t.open(op, id, db)
	if err != nil {
		return err
	}
	return l.settle(ctx, id, to)
}

// entry is a recorded line.
type entry struct {
	Line
	position int64
	state    driver.StockState
	due      bool // expired
}

// find locks and returns the lines of a reservation, sorted by item.
func (l ledger) find(ctx context.Context, id string) (all []entry, err error) {
	err = l.Each(ctx, `select position, item, n, state, case when expires_at <= {start} then 1 else 0 end from {lines} {maria force index (primary)}
		where reservation = ? order by position for update`, []any{id},
		func(scan func(...any) error) error {
			var e entry
			var due int
			err := scan(&e.position, &e.Item, &e.N, (*string)(&e.state), &due)
			e.due = due == 1
			all = append(all, e)
			return err
		})
	return all, err
}

// settle locks the reservation first and then its items, sorted, as Hold does.
func (l ledger) settle(ctx context.Context, id string, to driver.StockState) error {
	found, err := l.find(ctx, id)
	if err != nil {
		return err
	}
	held, err := judge(id, found, to)
	if err != nil || len(held) == 0 {
		return err
	}
	for _, e := range held {
		_, err := l.Exec(ctx, `update {lines} set state = ? where reservation = ? and position = ?`, string(to), id, e.position)
		if err != nil {
			return err
		}
	}
	for _, line := range held {
		sold := int64(0)
		if to == driver.StockConfirmed {
			sold = line.N
		}
		if err := l.move(ctx, line.Item, 0, -line.N, sold); err != nil {
			return err
		}
	}
	return nil
}

// judge returns the lines to settle, or the reason why none can be.
func judge(id string, found []entry, to driver.StockState) (held []entry, err error) {
	for _, e := range found {
		switch {
		case e.state.Settle(to) != driver.StockDone:
			return nil, &SettledError{Reservation: id, State: e.state}
		case e.state == driver.StockHeld:
			held = append(held, e)
		}
	}
	if len(found) == 0 && to == driver.StockConfirmed {
		return nil, &UnknownError{Reservation: id}
	}
	return held, nil
}
