package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// A gift is a line of a reservation that has expired, whose units somebody else
// is to have.
type gift struct {
	item, reservation string
	position, n       int64
}

// lock locks an item until the transaction ends, and tells how it stands, with
// all that is held, expired or not. Whoever takes or gives back units changes
// this row, and locks no reservation of others after it.
func (l *ledger) lock(ctx context.Context, item string) (level driver.StockLevel, found bool, err error) {
	found, err = l.row(ctx, `select supply, held, sold from {items} where item = ? for update`, []any{item},
		&level.Supply, &level.Held, &level.Sold)
	return level, found, err
}

// room locks an item and finds what must be given away for n units of it to be
// available; by is a reservation that is not to be given away. A refusal is a
// ShortError or UnknownError. Nothing is changed yet.
func (l *ledger) room(ctx context.Context, item string, n int64, by string) (gifts []gift, refusal, err error) {
	level, found, err := l.lock(ctx, item)
	switch {
	case err != nil:
		return nil, nil, err
	case !found:
		return nil, &UnknownError{Item: item}, nil
	case level.Available() >= n:
		return nil, nil, nil
	}
	gifts, sum, err := l.expired(ctx, item, n-level.Available(), by)
	if err == nil && level.Available()+sum < n {
		refusal = short(l.observe, item, n, level.Available()+sum)
	}
	return gifts, refusal, err
}

// expired finds the reservations that expired first, until they have n units.
// Those that somebody is just about to confirm or cancel are passed over, since
// who does that waits for the item, which is locked.
func (l *ledger) expired(ctx context.Context, item string, n int64, by string) (gifts []gift, sum int64, err error) {
	err = l.each(ctx, `select reservation, position, n from {lines} {by due}
		where item = ? and state = 'held' and expires_at <= {now} and reservation <> ?
		order by expires_at limit ? for update skip locked`, []any{item, by, n},
		func(scan func(...any) error) error {
			g := gift{item: item}
			if err := scan(&g.reservation, &g.position, &g.n); err != nil || sum >= n {
				return err
			}
			sum += g.n
			gifts = append(gifts, g)
			return nil
		})
	return gifts, sum, err
}

// giveAway makes the units of gifts available. Their items are locked.
func (l *ledger) giveAway(ctx context.Context, gifts []gift) error {
	for _, g := range gifts {
		_, err := l.exec(ctx, `update {lines} set state = 'expired' where reservation = ? and position = ?`, g.reservation, g.position)
		if err != nil {
			return err
		}
		if l.observe.GivenAway != nil {
			l.observe.GivenAway(observe.StockGivenAway{Item: g.item, Reservation: g.reservation, N: g.n})
		}
	}
	return l.unhold(ctx, gifts)
}

// unhold takes the units of gifts, which are in the order of their items, from
// what is held.
func (l *ledger) unhold(ctx context.Context, gifts []gift) error {
	for len(gifts) > 0 {
		item, sum := gifts[0].item, int64(0)
		for ; len(gifts) > 0 && gifts[0].item == item; gifts = gifts[1:] {
			sum += gifts[0].n
		}
		if _, err := l.exec(ctx, `update {items} set held = held - ? where item = ?`, sum, item); err != nil {
			return err
		}
	}
	return nil
}
