package stock

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// A heldLine is a recorded line whose units are held, as of an expired reservation whose units
// another one takes.
type heldLine struct {
	item, reservation string
	position, n       int64
}

// lockedItem is the state of a locked item, including expired holds.
type lockedItem struct {
	name string
	driver.StockLevel
	changes int64
}

// lock locks an item until the transaction ends. A refusal is an UnknownError.
func (l ledger) lock(ctx context.Context, item string) (s lockedItem, refusal, err error) {
	s.name = item
	found, err := l.Row(ctx, `select supply, held, sold, changes from {items} where item = ? for update`, []any{item},
		&s.Supply, &s.Held, &s.Sold, &s.changes)
	if !found {
		refusal = &UnknownError{Item: item}
	}
	return s, refusal, err
}

// room finds the expired lines whose units are needed to make n units of a locked item
// available, other than those of reservation except. It changes nothing. If there are too few, the
// refusal is a ShortError. The caller has locked all requested items.
func (l ledger) room(ctx context.Context, item lockedItem, n int64, except string) (expired []heldLine, refusal, err error) {
	available := item.Available()
	if available >= n {
		return nil, nil, nil
	}
	expired, sum, err := l.expired(ctx, item, n-available, except)
	if err == nil && available+sum < n {
		refusal = short(l.observe, item.name, n, available+sum)
	}
	return expired, refusal, err
}

// releaseExpired makes the units of expired available. The caller has locked their items.
func (l ledger) releaseExpired(ctx context.Context, expired []heldLine) error {
	for _, g := range expired {
		_, err := l.Exec(ctx, `update {lines} set state = 'expired' where reservation = ? and position = ?`, g.reservation, g.position)
		if err != nil {
			return err
		}
		if l.observe.GivenAway != nil {
			l.observe.GivenAway(observe.StockGivenAway{Item: g.item, Reservation: g.reservation, N: g.n})
		}
	}
	return l.unhold(ctx, expired)
}

// unhold subtracts the units of expired, which are sorted by item, from the held units.
func (l ledger) unhold(ctx context.Context, expired []heldLine) error {
	for len(expired) > 0 {
		item, sum := expired[0].item, int64(0)
		for ; len(expired) > 0 && expired[0].item == item; expired = expired[1:] {
			sum += expired[0].n
		}
		if err := l.move(ctx, item, 0, -sum, 0); err != nil {
			return err
		}
	}
	return nil
}

// returnUnits returns the units that were taken for the first lines of a reservation.
func (l ledger) returnUnits(ctx context.Context, lines []Line) error {
	for _, line := range lines {
		if err := l.move(ctx, line.Item, 0, -line.N, 0); err != nil {
			return err
		}
	}
	return nil
}
