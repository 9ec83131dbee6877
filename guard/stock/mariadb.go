package stock

import "context"

// On MariaDB looks lock, but for one, and see what was committed last, whatever the snapshot
// of the transaction shows. A look at rows that do not exist would lock
// the gap between others; what may or may not exist is therefore inserted, and
// column repeats tells whether it was there. No count of affected rows is relied
// on but where a row that is found is changed.
//
// Rows that are locked are found by their whole key, or by an index that the
// statement names: otherwise InnoDB locks each row that it looked at on its way,
// and a small table is read from one end to the other.

// holdMaria records the first line, which keeps two of the same reservation apart,
// then the others; then it takes the units of each item.
func (l ledger) holdMaria(ctx context.Context, r reservation) (fresh, taken bool, err error) {
	repeats := int64(0)
	for i, line := range r.lines {
		_, err := l.Row(ctx, `insert into {lines} (reservation, position, item, n, state, expires_at, repeats)
			values (?, ?, ?, ?, 'held', {start} + {span}, 0)
			on duplicate key update repeats = repeats + 1 returning repeats`,
			[]any{r.id, i, line.Item, line.N, r.ttl.Microseconds()}, &repeats)
		if err != nil || repeats > 0 {
			return false, false, err
		}
	}
	for i, line := range r.lines {
		n, err := l.Exec(ctx, `update {items} set held = held + ?, changes = changes + 1 where item = ? and held + sold + ? <= supply`,
			line.N, line.Item, line.N)
		if err != nil {
			return true, false, err
		}
		if n == 0 {
			return true, false, l.giveBack(ctx, r.lines[:i])
		}
	}
	return true, true, nil
}

// expiredMaria looks without locking, and then locks what it found row by row. A look
// that locks would also lock the gap to the next item's reservations, and wait for
// those that are just being made, whatever SKIP LOCKED says; who makes them may
// wait for the item. Whether the look sees all of the item, or a snapshot from
// before its last change, the column changes tells.
func (l ledger) expiredMaria(ctx context.Context, item standing, n int64, but string) (gifts []gift, sum int64, err error) {
	var seen int64
	if _, err := l.Row(ctx, `select changes from {items} where item = ?`, []any{item.name}, &seen); err != nil {
		return nil, 0, err
	}
	if seen != item.changes {
		return nil, 0, l.Outdated()
	}
	var due []gift
	err = l.Each(ctx, `select reservation, position, n from {lines} {maria force index (due)}
		where item = ? and state = 'held' and expires_at <= {start} and reservation <> {?}
		order by expires_at limit ?`, []any{item.name, but, n},
		func(scan func(...any) error) error {
			g := gift{item: item.name}
			err := scan(&g.reservation, &g.position, &g.n)
			due = append(due, g)
			return err
		})
	for i := 0; i < len(due) && sum < n && err == nil; i++ {
		var found bool
		found, err = l.Row(ctx, `select n from {lines} where reservation = ? and position = ? and state = 'held' for update skip locked`,
			[]any{due[i].reservation, due[i].position}, &due[i].n)
		if found {
			sum += due[i].n
			gifts = append(gifts, due[i])
		}
	}
	return gifts, sum, err
}

// adjustMaria changes the item first, and records the operation while it is locked: of
// several who record the same one at once, and remove it again because there was
// too little, InnoDB makes a deadlock.
func (l ledger) adjustMaria(ctx context.Context, a Adjustment) (fresh, done bool, err error) {
	n, err := l.Exec(ctx, `update {items} set supply = supply + ?, changes = changes + 1
		where item = ? and supply - held - sold >= ? and supply + ? <= `+quantity, a.Delta, a.Item, a.Take(), a.Delta)
	if err == nil && n == 0 {
		_, _, err = l.lock(ctx, a.Item)
	}
	if err != nil {
		return false, false, err
	}
	var repeats int64
	_, err = l.Row(ctx, `insert into {operations} (item, operation, delta, done_at, repeats) values (?, ?, ?, {start}, 0)
		on duplicate key update repeats = repeats + 1 returning repeats`, []any{a.Item, a.Operation, a.Delta}, &repeats)
	if err == nil && repeats > 0 && n == 1 {
		err = l.move(ctx, a.Item, -a.Delta, 0, 0)
	}
	return repeats == 0, n == 1, err
}
