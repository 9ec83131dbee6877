package stock

import (
	"cmp"
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Hold takes the units of all lines for a reservation, or of none. Until ttl has
// passed, by the database's clock, nobody else can have them; after that they are
// available to others, without anything having to run, and the reservation can be
// confirmed until one of them has taken some.
//
// id is the reservation's name for all time: 1 to driver.MaxName bytes of UTF-8
// without NUL, chosen by the caller, such as the id of an order. Calling Hold
// again with the same lines does nothing, and neither prolongs the hold nor makes
// a new one of one that is over. A [ShortError] tells of the first item of which
// there are too few; a [ReusedError], that the reservation has other lines; a
// [SettledError], that it was cancelled, or has expired; an [UnknownError], that
// an item has no supply. Other errors are those of the database, with their kind.
//
// It waits while another transaction that has changed one of the items goes on.
func (t Table) Hold(ctx context.Context, db driver.SQL, id string, ttl time.Duration, lines ...Line) error {
	const op = "hold"
	r, err := reserve(op, id, ttl, lines)
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
		err = l.repeated(ctx, r)
	case err == nil && !taken:
		err = l.holdWithRoom(ctx, r)
	}
	return err
}

// repeated judges a reservation that was there before.
func (l ledger) repeated(ctx context.Context, r reservation) error {
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

// holdWithRoom takes the units of a reservation that is recorded and was refused,
// at the expense of those that have expired; or it removes the record.
func (l ledger) holdWithRoom(ctx context.Context, r reservation) error {
	gifts, refusal, err := l.roomForAll(ctx, r)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return cmp.Or(l.erase(ctx, r), refusal)
	}
	if err := l.giveAway(ctx, gifts); err != nil {
		return err
	}
	for _, line := range r.lines {
		if err := l.move(ctx, line.Item, 0, line.N, 0); err != nil {
			return err
		}
	}
	return nil
}

// roomForAll locks the items, and then finds what must be given away.
func (l ledger) roomForAll(ctx context.Context, r reservation) (gifts []gift, refusal, err error) {
	items := make([]standing, len(r.lines))
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
		gifts = append(gifts, some...)
	}
	return gifts, nil, nil
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
