package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// A gift is a line of an expired reservation whose units are taken by another one.
type gift struct {
	item, reservation string
	position, n       int64
}

// standing is the state of a locked item, including expired holds.
type standing struct {
	name string
	driver.StockLevel
	changes int64
}

// lock locks an item until the transaction ends. A refusal is an UnknownError.
func (l ledger) lock(ctx context.Context, item string) (s standing, refusal, err error) {
	s.name = item
	found, err := l.Row(ctx, `select supply, held, sold, changes from {items} where item = ? for update`, []any{item},
		&s.Supply, &s.Held, &s.Sold, &s.changes)
	if !found {
		refusal = &UnknownError{Item: item}
	}
	return s, refusal, err
}

// room finds the expired lines whose units are needed to make n units of a locked item
// available, except those of reservation but. It changes nothing. If there are too few, the
// refusal is a ShortError. The caller has locked all requested items.
func (l ledger) room(ctx context.Context, item standing, n int64, but string) (gifts []gift, refusal, err error) {
	available := item.Available()
	if available >= n {
		return nil, nil, nil
	}
	gifts, sum, err := l.expired(ctx, item, n-available, but)
	if err == nil && available+sum < n {
		refusal = short(l.observe, item.name, n, available+sum)
	}
	return gifts, refusal, err
}

// giveAway makes the units of gifts available. The caller has locked their items.
func (l ledger) giveAway(ctx context.Context, gifts []gift) error {
	for _, g := range gifts {
		_, err := l.Exec(ctx, `update {lines} set state = 'expired' where reservation = ? and position = ?`, g.reservation, g.position)
		if err != nil {
			return err
		}
		if l.observe.GivenAway != nil {
			l.observe.GivenAway(observe.StockGivenAway{Item: g.item, Reservation: g.reservation, N: g.n})
		}
	}
	return l.unhold(ctx, gifts)
}

// unhold subtracts the units of gifts, which are sorted by item, from the held units.
func (l ledger) unhold(ctx context.Context, gifts []gift) error {
	for len(gifts) > 0 {
		item, sum := gifts[0].item, int64(0)
		for ; len(gifts) > 0 && gifts[0].item == item; gifts = gifts[1:] {
			sum += gifts[0].n
		}
		if err := l.move(ctx, item, 0, -sum, 0); err != nil {
			return err
		}
	}
	return nil
}

// giveBack returns the units that were taken for the first lines of a reservation.
func (l ledger) giveBack(ctx context.Context, lines []Line) error {
	for _, line := range lines {
		if err := l.move(ctx, line.Item, 0, -line.N, 0); err != nil {
			return err
		}
	}
	return nil
}
