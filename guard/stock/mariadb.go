package stock

import "context"

// On MariaDB all reads but one lock, and see the last commit, whatever the snapshot of the
// transaction. A locking read of missing rows would lock the gap between others. Rows that may
// exist are therefore inserted, and column repeats shows whether they existed. Counts of affected
// rows are used only where every row that is found changes.
//
// Rows to lock are found by their complete key, or by an index that the statement names. Otherwise
// InnoDB locks each row that it scans, and scans small tables completely.

// holdMaria records the first line, which serializes transactions of the same reservation, and
// then the others. Then it takes the units of each item.
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
			return true, false, l.returnUnits(ctx, r.lines[:i])
		}
	}
	return true, true, nil
}

// expiredMaria reads without locks, and then locks the found rows one by one. A locking read
// would also lock the gap to the next item's reservations. It would wait for reservations that
// are being inserted, even with SKIP LOCKED, and their transactions may wait for the item.
// Column changes shows whether the read is current, or a snapshot from before the item's last
// change.
func (l ledger) expiredMaria(ctx context.Context, item lockedItem, n int64, except string) (expired []heldLine, sum int64, err error) {
	var seen int64
	if _, err := l.Row(ctx, `select changes from {items} where item = ?`, []any{item.name}, &seen); err != nil {
		return nil, 0, err
	}
	if seen != item.changes {
		return nil, 0, l.Outdated()
	}
	var due []heldLine
	err = l.Each(ctx, `select reservation, position, n from {lines} {maria force index (due)}
		where item = ? and state = 'held' and expires_at <= {start} and reservation <> {?}
		order by expires_at limit ?`, []any{item.name, except, n},
		func(scan func(...any) error) error {
			g := heldLine{item: item.name}
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
			expired = append(expired, due[i])
		}
	}
	return expired, sum, err
}

// adjustMaria changes the item first, and records the operation while the item is locked. If
// several transactions recorded the same operation first and removed it again because of too
// few units, InnoDB would deadlock.
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
