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
