package stock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/sqltable"
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
		report.Now(l.observe.GivenAway, observe.StockGivenAway{Item: g.item, Reservation: g.reservation, N: g.n})
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

// MaxSweep is the maximum number of reservations, and of operations, that one Sweep deletes.
const MaxSweep = 1000

// Sweep deletes up to limit reservations, with any outcome, that expired longer than Table.Keep
// ago, and as many operations of that age. It returns how many it deleted. Only the size of the
// tables depends on it. Call it from time to time, each call in a transaction of its own, until
// it returns 0. limit is 1 to [MaxSweep]. Several processes may sweep concurrently.
func (t Table) Sweep(ctx context.Context, db driver.SQL, limit int) (forgotten int, err error) {
	const op = "sweep stock"
	if limit < 1 || limit > MaxSweep {
		return 0, failure.Bug(op, "", "a limit of %d: it can be 1 to %d", limit, MaxSweep)
	}
	l, err := t.open(op, "", db)
	if err != nil {
		return 0, err
	}
	reservations, err := l.sweepReservations(ctx, t.keep(), limit)
	if err != nil {
		return 0, err
	}
	operations, err := l.sweepOperations(ctx, t.keep(), limit)
	return reservations + operations, err
}

// sweepReservations deletes whole reservations, each found by its first line, and skips those
// that another transaction has locked. It locks all lines before any item.
func (l ledger) sweepReservations(ctx context.Context, keep time.Duration, limit int) (int, error) {
	ids, err := sqltable.Column[any](ctx, l.Tables, `select reservation from {lines} {maria force index (old)} where position = 0 and expires_at <= {start} - {span}
		order by expires_at limit ? for update skip locked`, keep.Microseconds(), limit)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	which := `reservation in (?` + strings.Repeat(`, ?`, len(ids)-1) + `)`
	var held []heldLine
	err = l.Each(ctx, `select item, n, state from {lines} {maria force index (primary)} where `+which+` for update`, ids,
		func(scan func(...any) error) error {
			var g heldLine
			var state string
			err := scan(&g.item, &g.n, &state)
			if state == string(driver.StockHeld) {
				held = append(held, g)
			}
			return err
		})
	if err != nil {
		return 0, err
	}
	if _, err := l.Exec(ctx, `delete from {lines} where `+which, ids...); err != nil {
		return 0, err
	}
	slices.SortFunc(held, func(a, b heldLine) int { return cmp.Compare(a.item, b.item) })
	return len(ids), l.unhold(ctx, held)
}

func (l ledger) sweepOperations(ctx context.Context, keep time.Duration, limit int) (int, error) {
	type key struct{ item, operation string }
	keys, err := sqltable.List(ctx, l.Tables, `select item, operation from {operations} {maria force index (done)} where done_at <= {start} - {span}
		order by done_at limit ? for update skip locked`, []any{keep.Microseconds(), limit}, func(k *key) []any { return []any{&k.item, &k.operation} })
	if err != nil {
		return 0, err
	}
	for _, k := range keys {
		if _, err := l.Exec(ctx, `delete from {operations} where item = ? and operation = ?`, k.item, k.operation); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}
