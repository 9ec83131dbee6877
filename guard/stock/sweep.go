package stock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// MaxSweep is the maximum number of reservations, and of operations, that one Sweep deletes.
const MaxSweep = 1000

// Sweep deletes up to limit reservations, with any outcome, that expired longer than Table.Keep
// ago, and as many operations of that age. It returns how many it deleted. Only the size of the
// tables depends on it. Call it from time to time, each call in a transaction of its own, until
// it returns 0. limit is 1 to [MaxSweep]; several processes may sweep concurrently.
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
