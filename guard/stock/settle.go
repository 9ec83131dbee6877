package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
)

// Confirm makes a reservation permanent: its units are sold. It may be late: what
// has expired is confirmed all the same, unless units of it were given to others;
// that is a [SettledError] with driver.StockExpired, and nothing of it is sold.
// Confirming again does nothing. One that was cancelled is a [SettledError] too,
// and one that is not known an [UnknownError].
func (t Table) Confirm(ctx context.Context, db driver.SQL, id string) error {
	return t.settle(ctx, db, "confirm", id, driver.StockConfirmed)
}

// Cancel gives back the units of a reservation. Cancelling again does nothing, nor
// does cancelling one that expired, or that is not known. The latter does not keep
// it from being held later: a Hold that is still on its way lasts until it
// expires. One that was confirmed is a [SettledError].
func (t Table) Cancel(ctx context.Context, db driver.SQL, id string) error {
	return t.settle(ctx, db, "cancel", id, driver.StockCancelled)
}

func (t Table) settle(ctx context.Context, db driver.SQL, op, id string, to driver.StockState) error {
	if err := named(op, "a reservation", id); err != nil {
		return err
	}
	l, err := t.open(op, id, db)
	if err != nil {
		return err
	}
	return l.settle(ctx, id, to)
}

// entry is a line as it is recorded.
type entry struct {
	Line
	position int64
	state    driver.StockState
	due      bool // its time is over
}

// find locks the lines of a reservation, which are in the order of their items.
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

// settle locks the reservation first and its items after it, sorted, as Hold does.
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

// judge tells which lines have to be settled, or why none can be.
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
