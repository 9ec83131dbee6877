package stock

import (
	"context"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps stock in PostgreSQL. What can be done at once is one statement.
type postgres struct{}

func (postgres) now() string { return "statement_timestamp()" }

func (postgres) ago() string { return "statement_timestamp() - ?::bigint * interval '1 second'" }

func (postgres) hint(string) string { return "" }

func (postgres) create() []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock stock: create', 0))`,
		`create table if not exists {items} (
			item text collate "C" primary key,
			supply bigint not null check (supply between 0 and ` + quantity + `),
			held bigint not null check (held >= 0),
			sold bigint not null check (sold >= 0),
			changes bigint not null default 0,
			check (held + sold <= supply))`,
		`create table if not exists {lines} (
			reservation text collate "C" not null,
			position int not null,
			item text collate "C" not null,
			n bigint not null check (n > 0),
			state text not null check (state in ('held', 'confirmed', 'cancelled', 'expired')),
			expires_at timestamptz not null,
			primary key (reservation, position),
			unique (reservation, item))`,
		`create index if not exists {due} on {lines} (item, expires_at) where state = 'held'`,
		`create index if not exists {old} on {lines} (expires_at) where position = 0`,
		`create table if not exists {operations} (
			item text collate "C" not null,
			operation text collate "C" not null,
			delta bigint not null check (delta <> 0),
			done_at timestamptz not null,
			primary key (item, operation))`,
		`create index if not exists {done} on {operations} (done_at)`,
	}
}

// holdPostgres records the first line, and only if that was not there the others,
// locks the items in their order, and takes the units of those that have enough.
// The first line is what keeps two of the same reservation apart.
//
// The rows of locked are as they are now; the condition is in the UPDATE all the
// same. That statement first makes a new row of the version that it saw when it
// began, and holds the CHECK against it; only then does it notice that there is a
// newer version, and starts over with that. Without the condition, units that came
// back meanwhile would end in an error of the CHECK. If the old version does not
// meet the condition and the newest does, holdWithRoom finds that out.
const holdPostgres = `
with want (position, item, n) as (values %s),
first as (
	insert into {lines} (reservation, position, item, n, state, expires_at)
	select $1::text, position, item, n, 'held', clock_timestamp() + $2::bigint * interval '1 microsecond' from want where position = 0
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

func (postgres) hold(ctx context.Context, l *ledger, r reservation) (fresh, taken bool, err error) {
	args := []any{r.id, r.ttl.Microseconds()}
	values := make([]string, len(r.lines))
	for i, line := range r.lines {
		values[i] = fmt.Sprintf("(%d, $%d::text, $%d::bigint)", i, len(args)+1, len(args)+2)
		args = append(args, line.Item, line.N)
	}
	var got []Line
	err = l.each(ctx, fmt.Sprintf(holdPostgres, strings.Join(values, ", ")), args, func(scan func(...any) error) error {
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
	return fresh, false, l.giveBack(ctx, got)
}

// expired passes over what somebody is just about to confirm or cancel: who does
// that may wait for the item.
func (postgres) expired(ctx context.Context, l *ledger, item standing, n int64, but string) (gifts []gift, sum int64, err error) {
	err = l.each(ctx, `select reservation, position, n from {lines}
		where item = ? and state = 'held' and expires_at <= {now} and reservation <> ?
		order by expires_at limit ? for update skip locked`, []any{item.name, but, n},
		func(scan func(...any) error) error {
			g := gift{item: item.name}
			if err := scan(&g.reservation, &g.position, &g.n); err != nil || sum >= n {
				return err
			}
			sum += g.n
			gifts = append(gifts, g)
			return nil
		})
	return gifts, sum, err
}

func (postgres) upsertion() string {
	return `insert into {items} as i (item, supply, held, sold) values (?, ?, 0, 0)
		on conflict (item) do update
		set supply = case when i.held + i.sold <= excluded.supply then excluded.supply else i.supply end, changes = i.changes + 1
		returning supply`
}

// adjustPostgres records the operation, and if that was not there changes the
// supply.
var adjustPostgres = `
with fresh as (
	insert into {operations} (item, operation, delta, done_at) values ($1::text, $2::text, $3::bigint, {now})
	on conflict do nothing returning 1),
done as (
	update {items} set supply = supply + $3::bigint, changes = changes + 1
	where item = $1::text and supply - held - sold >= $4::bigint and supply + $3::bigint <= ` + quantity + ` and exists (select from fresh)
	returning 1)
select (select count(*) from fresh), (select count(*) from done)`

func (postgres) adjust(ctx context.Context, l *ledger, a Adjustment) (fresh, done bool, err error) {
	var recorded, changed int
	_, err = l.row(ctx, adjustPostgres, []any{a.Item, a.Operation, a.Delta, a.Take()}, &recorded, &changed)
	return recorded == 1, changed == 1, err
}

// quantity is driver.MaxQuantity in SQL.
var quantity = fmt.Sprint(int64(driver.MaxQuantity))
