package stock

import (
	"context"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// holdStatement records the first line. If that is new, it records the others, locks the items
// in order, and takes the units of the items that have enough. The first line serializes
// transactions of the same reservation.
//
// The rows of locked are current, but the UPDATE needs the condition too. The UPDATE first
// builds a new row from the version that it saw at its start, and checks the CHECK against it.
// Only then does it detect a newer version and start over with that. Without the condition,
// units that were returned meanwhile would cause an error of the CHECK. If only the newest
// version meets the condition, holdWithRoom finds that out.
const holdStatement = `
with want (position, item, n) as (values %s),
first as (
	insert into {lines} (reservation, position, item, n, state, expires_at)
	select $1::text, position, item, n, 'held', {now} + $2::bigint * interval '1 microsecond' from want where position = 0
	on conflict do nothing returning expires_at),
rest as (
	insert into {lines} (reservation, position, item, n, state, expires_at)
	select $1::text, position, item, n, 'held', expires_at from want, first where position > 0),
locked as (
	select i.item from {items} i join want using (item) where exists (select from first) order by i.item for update of i),
taken as (
	update {items} i set held = i.held + want.n, changes = i.changes + 1 from want join locked using (item)
	where i.item = want.item and i.held + i.sold + want.n <= i.supply
	returning want.position)
select exists (select from first), coalesce(position, -1) from (values (0)) as one (n) left join taken on true`

// holdPostgres holds by one statement, unless there are too few units.
func (l ledger) holdPostgres(ctx context.Context, r reservation) (fresh, taken bool, err error) {
	args := []any{r.id, r.ttl.Microseconds()}
	values := make([]string, len(r.lines))
	for i, line := range r.lines {
		values[i] = fmt.Sprintf("(%d, $%d::text, $%d::bigint)", i, len(args)+1, len(args)+2)
		args = append(args, line.Item, line.N)
	}
	var got []Line
	err = l.Each(ctx, fmt.Sprintf(holdStatement, strings.Join(values, ", ")), args, func(scan func(...any) error) error {
		var position int
		err := scan(&fresh, &position)
		if position >= 0 {
			got = append(got, r.lines[position])
		}
		return err
	})
	if err != nil || len(got) == len(r.lines) {
		return fresh, true, err
	}
	return fresh, false, l.returnUnits(ctx, got)
}

// expiredPostgres skips reservations that another transaction is confirming or cancelling,
// because that transaction may wait for the item.
func (l ledger) expiredPostgres(ctx context.Context, item lockedItem, n int64, except string) (expired []heldLine, sum int64, err error) {
	err = l.Each(ctx, `select reservation, position, n from {lines}
		where item = ? and state = 'held' and expires_at <= {start} and reservation <> ?
		order by expires_at limit ? for update skip locked`, []any{item.name, except, n},
		func(scan func(...any) error) error {
			g := heldLine{item: item.name}
			if err := scan(&g.reservation, &g.position, &g.n); err != nil || sum >= n {
				return err
			}
			sum += g.n
			expired = append(expired, g)
			return nil
		})
	return expired, sum, err
}

// adjustStatement records the operation, and changes the supply if the operation is new.
var adjustStatement = `
with fresh as (
	insert into {operations} (item, operation, delta, done_at) values ($1::text, $2::text, $3::bigint, {start})
	on conflict do nothing returning 1),
done as (
	update {items} set supply = supply + $3::bigint, changes = changes + 1
	where item = $1::text and supply - held - sold >= $4::bigint and supply + $3::bigint <= ` + quantity + ` and exists (select from fresh)
	returning 1)
select (select count(*) from fresh), (select count(*) from done)`

func (l ledger) adjustPostgres(ctx context.Context, a Adjustment) (fresh, done bool, err error) {
	var recorded, changed int
	_, err = l.Row(ctx, adjustStatement, []any{a.Item, a.Operation, a.Delta, a.Take()}, &recorded, &changed)
	return recorded == 1, changed == 1, err
}

// quantity is driver.MaxQuantity in SQL.
var quantity = fmt.Sprint(int64(driver.MaxQuantity))

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
	for tried, more := 0, true; more && sum < n && err == nil; {
		var due []heldLine
		limit := n - sum + int64(tried) // those that are locked do not count
		err = l.Each(ctx, `select reservation, position, n from {lines} {maria force index (due)}
			where item = ? and state = 'held' and expires_at <= {start} and reservation <> {?}
			order by expires_at, reservation limit ?`, []any{item.name, except, limit},
			func(scan func(...any) error) error {
				g := heldLine{item: item.name}
				err := scan(&g.reservation, &g.position, &g.n)
				due = append(due, g)
				return err
			})
		more = int64(len(due)) == limit
		for ; tried < len(due) && sum < n && err == nil; tried++ {
			var found bool
			g := due[tried]
			found, err = l.Row(ctx, `select n from {lines} where reservation = ? and position = ? and state = 'held' for update skip locked`,
				[]any{g.reservation, g.position}, &g.n)
			if found {
				sum += g.n
				expired = append(expired, g)
			}
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
