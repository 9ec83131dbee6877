package stock

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
)

// mariadb keeps stock in MariaDB.
//
// Looks lock, but for one, and see what was committed last, whatever the snapshot
// of the transaction shows. A look at rows that do not exist would lock
// the gap between others; what may or may not exist is therefore inserted, and
// column repeats tells whether it was there. No count of affected rows is relied
// on but where a row that is found is changed.
//
// Rows that are locked are found by their whole key, or by an index that the
// statement names: otherwise InnoDB locks each row that it looked at on its way,
// and a small table is read from one end to the other.
type mariadb struct{}

func (mariadb) now() string { return "utc_timestamp(6)" }

func (mariadb) ago() string { return "utc_timestamp(6) - interval ? second" }

func (mariadb) hint(index string) string { return "force index (" + index + ")" }

// create compares names by their bytes. CREATE ends the transaction.
func (mariadb) create() []string {
	const engine = ` engine = InnoDB default charset = utf8mb4`
	return []string{
		`create table if not exists {items} (
			item varbinary(512) not null primary key,
			supply bigint not null check (supply between 0 and ` + quantity + `),
			held bigint not null check (held >= 0),
			sold bigint not null check (sold >= 0),
			changes bigint not null default 0,
			check (held + sold <= supply))` + engine,
		`create table if not exists {lines} (
			reservation varbinary(512) not null,
			position int not null,
			item varbinary(512) not null,
			n bigint not null check (n > 0),
			state varchar(9) character set ascii collate ascii_bin not null
				check (state in ('held', 'confirmed', 'cancelled', 'expired')),
			expires_at datetime(6) not null,
			repeats bigint not null,
			primary key (reservation, position),
			index due (item, state, expires_at),
			index old (position, expires_at))` + engine,
		`create table if not exists {operations} (
			item varbinary(512) not null,
			operation varbinary(512) not null,
			delta bigint not null check (delta <> 0),
			done_at datetime(6) not null,
			repeats bigint not null,
			primary key (item, operation),
			index done (done_at))` + engine,
	}
}

// hold records the first line, which keeps two of the same reservation apart,
// then the others; then it takes the units of each item.
func (mariadb) hold(ctx context.Context, l *ledger, r reservation) (fresh, taken bool, err error) {
	repeats := int64(0)
	for i, line := range r.lines {
		_, err := l.row(ctx, `insert into {lines} (reservation, position, item, n, state, expires_at, repeats)
			values (?, ?, ?, ?, 'held', utc_timestamp(6) + interval ? microsecond, 0)
			on duplicate key update repeats = repeats + 1 returning repeats`,
			[]any{r.id, i, line.Item, line.N, r.ttl.Microseconds()}, &repeats)
		if err != nil || repeats > 0 {
			return false, false, err
		}
	}
	for i, line := range r.lines {
		n, err := l.exec(ctx, `update {items} set held = held + ?, changes = changes + 1 where item = ? and held + sold + ? <= supply`,
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

// expired looks without locking, and then locks what it found row by row. A look
// that locks would also lock the gap to the next item's reservations, and wait for
// those that are just being made, whatever SKIP LOCKED says; who makes them may
// wait for the item. Whether the look sees all of the item, or a snapshot from
// before its last change, the column changes tells.
func (mariadb) expired(ctx context.Context, l *ledger, item standing, n int64, but string) (gifts []gift, sum int64, err error) {
	var seen int64
	if _, err := l.row(ctx, `select changes from {items} where item = ?`, []any{item.name}, &seen); err != nil {
		return nil, 0, err
	}
	if seen != item.changes {
		return nil, 0, errOutdated
	}
	var due []gift
	err = l.each(ctx, `select reservation, position, n from {lines} {by due}
		where item = ? and state = 'held' and expires_at <= {now} and reservation <> ?
		order by expires_at limit ?`, []any{item.name, but, n},
		func(scan func(...any) error) error {
			g := gift{item: item.name}
			err := scan(&g.reservation, &g.position, &g.n)
			due = append(due, g)
			return err
		})
	for i := 0; i < len(due) && sum < n && err == nil; i++ {
		var found bool
		found, err = l.row(ctx, `select n from {lines} where reservation = ? and position = ? and state = 'held' for update skip locked`,
			[]any{due[i].reservation, due[i].position}, &due[i].n)
		if found {
			sum += due[i].n
			gifts = append(gifts, due[i])
		}
	}
	return gifts, sum, err
}

var errOutdated = &interlock.Error{Op: "look for what expired", Driver: "mysql", Kind: interlock.Retryable,
	Err: errors.New("the transaction had read before, and reads from before the item's last change")}

func (mariadb) upsertion() string {
	return `insert into {items} (item, supply, held, sold) values (?, ?, 0, 0)
		on duplicate key update supply = if(held + sold <= values(supply), values(supply), supply), changes = changes + 1
		returning supply`
}

// adjust changes the item first, and records the operation while it is locked: of
// several who record the same one at once, and remove it again because there was
// too little, InnoDB makes a deadlock.
func (mariadb) adjust(ctx context.Context, l *ledger, a Adjustment) (fresh, done bool, err error) {
	n, err := l.exec(ctx, `update {items} set supply = supply + ?, changes = changes + 1
		where item = ? and supply - held - sold >= ? and supply + ? <= `+quantity, a.Delta, a.Item, a.Take(), a.Delta)
	if err == nil && n == 0 {
		_, _, err = l.lock(ctx, a.Item)
	}
	if err != nil {
		return false, false, err
	}
	var repeats int64
	_, err = l.row(ctx, `insert into {operations} (item, operation, delta, done_at, repeats) values (?, ?, ?, utc_timestamp(6), 0)
		on duplicate key update repeats = repeats + 1 returning repeats`, []any{a.Item, a.Operation, a.Delta}, &repeats)
	if err == nil && repeats > 0 && n == 1 {
		err = l.move(ctx, a.Item, -a.Delta, 0, 0)
	}
	return repeats == 0, n == 1, err
}
