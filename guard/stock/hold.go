package stock

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Hold takes the units of all lines for a reservation, or of none. Until ttl has passed, by the
// database's clock, no other reservation can take them. After that they are available to
// others, and no sweeper has to run. The reservation can be confirmed until another one has
// taken one of its units.
//
// id names the reservation forever: 1 to driver.MaxName bytes of UTF-8 without NUL, chosen by
// the caller, such as the id of an order. A repeated Hold with the same lines does nothing: it
// does not extend the hold, and does not renew one that is over. The error is one of:
//
//   - a [ShortError], for the first item with too few units
//   - a [ReusedError], if the reservation has other lines
//   - a [SettledError], if it was cancelled or has expired
//   - an [UnknownError], if an item has no supply
//   - an error of the database, with its kind
//
// Hold blocks until other transactions that have changed one of the items end.
func (t Table) Hold(ctx context.Context, db driver.SQL, id string, ttl time.Duration, lines ...Line) error {
	const op = "hold"
	r, err := newReservation(op, id, ttl, lines)
	if err != nil {
		return err
	}
	l, err := t.open(op, id, db)
	if err != nil {
		return err
	}
	fresh, taken, err := l.hold(ctx, r)
	switch {
	case err == nil && !fresh:
		err = l.repeatedHold(ctx, r)
	case err == nil && !taken:
		err = l.holdWithRoom(ctx, r)
	}
	return err
}

// repeatedHold returns the result for a reservation that existed before.
func (l ledger) repeatedHold(ctx context.Context, r reservation) error {
	found, err := l.find(ctx, r.id)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return errForgotten
	}
	if len(found) != len(r.lines) {
		return &ReusedError{ID: r.id}
	}
	state := driver.StockConfirmed
	for i, f := range found {
		if f.Line != r.lines[i] {
			return &ReusedError{ID: r.id}
		}
		switch {
		case f.state == driver.StockHeld && f.due:
			state = driver.StockExpired
		case f.state != driver.StockHeld && f.state != driver.StockConfirmed:
			return &SettledError{Reservation: r.id, State: f.state}
		}
	}
	if state == driver.StockExpired {
		return &SettledError{Reservation: r.id, State: state}
	}
	return nil
}

// holdWithRoom takes the units of a recorded reservation that had too few, by taking units of
// expired reservations. If that is impossible, it removes the record.
func (l ledger) holdWithRoom(ctx context.Context, r reservation) error {
	expired, refusal, err := l.roomForAll(ctx, r)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return cmp.Or(l.erase(ctx, r), refusal)
	}
	if err := l.releaseExpired(ctx, expired); err != nil {
		return err
	}
	for _, line := range r.lines {
		if err := l.move(ctx, line.Item, 0, line.N, 0); err != nil {
			return err
		}
	}
	return nil
}

// roomForAll locks the items, and then finds the expired lines whose units are needed.
func (l ledger) roomForAll(ctx context.Context, r reservation) (expired []heldLine, refusal, err error) {
	items := make([]lockedItem, len(r.lines))
	for i, line := range r.lines {
		if items[i], refusal, err = l.lock(ctx, line.Item); refusal != nil || err != nil {
			return nil, refusal, err
		}
	}
	for i, line := range r.lines {
		some, refusal, err := l.room(ctx, items[i], line.N, r.id)
		if refusal != nil || err != nil {
			return nil, refusal, err
		}
		expired = append(expired, some...)
	}
	return expired, nil, nil
}

// erase removes the record of a reservation, line by line: see [mariadb].
func (l ledger) erase(ctx context.Context, r reservation) error {
	for i := range r.lines {
		if _, err := l.Exec(ctx, `delete from {lines} where reservation = ? and position = ?`, r.id, i); err != nil {
			return err
		}
	}
	return nil
}

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
