package version

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps stamps in PostgreSQL.
//
// One statement looks at the stamp in its snapshot and, unless that is enough to
// refuse, raises it; what it raises it compares again with what was committed
// last, once it has the row's lock. So a replay of old changes writes nothing.
// If the look found nothing to refuse and the raise did, another transaction was
// faster, and only then a second statement looks who.
type postgres struct{}

func (postgres) create(table, index string) []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock version: create', 0))`,
		`create table if not exists ` + table + ` (
			entity text collate "C" primary key,
			version bigint not null,
			tie text collate "C" not null,
			deleted boolean not null,
			terminal boolean not null,
			changed_at timestamptz not null)`,
		`create index if not exists ` + index + ` on ` + table + ` (changed_at) where deleted`,
	}
}

// lets is Versioned.Judge in SQL: whether a stored state, of which the version,
// tie and terminal columns are given, lets the one of $2, $3 and $4 replace it;
// wins is TerminalWins.
func lets(version, tie, terminal string, wins bool) string {
	return fmt.Sprintf(`(not %[3]s and (%[1]s, %[2]s collate "C") <> ($2::bigint, $3::text)
		and ($4::boolean and %[4]t or (%[1]s, %[2]s collate "C") < ($2::bigint, $3::text)))`, version, tie, terminal, wins)
}

const applyTable = `
with stored as (
	select version, tie, terminal from %[1]s where entity = $1::text),
raised as (
	insert into %[1]s as kept (entity, version, tie, terminal, deleted, changed_at)
	select $1::text, $2::bigint, $3::text, $4::boolean, $5::boolean, clock_timestamp()
	where not exists (select from stored where not %[2]s)
	on conflict (entity) do update set
		version = excluded.version, tie = excluded.tie, terminal = excluded.terminal,
		deleted = excluded.deleted, changed_at = excluded.changed_at
	where %[3]s
	returning 1)
select coalesce(version, 0), coalesce(tie, ''), coalesce(terminal, false), exists (select from raised)
from (values (1)) as always left join stored on true`

func (p postgres) apply(ctx context.Context, db driver.SQL, table string, c Change) (Outcome, error) {
	var stored driver.Versioned
	var raised bool
	query := fmt.Sprintf(applyTable, table, lets("version", "tie", "terminal", c.TerminalWins),
		lets("kept.version", "kept.tie", "kept.terminal", c.TerminalWins))
	_, err := row(ctx, db, query, []any{c.Entity, c.Stamp.Version, c.Stamp.Tie, c.Terminal, c.Deleted},
		&stored.Stamp.Version, &stored.Stamp.Tie, &stored.Terminal, &raised)
	if err != nil || raised {
		return Applied, err
	}
	return p.judge(stored, c, func() (driver.Versioned, error) {
		s, err := p.show(ctx, db, table, c.Entity)
		return driver.Versioned{Stamp: s.Stamp, Terminal: s.Terminal}, err
	})
}

// judge says why c was not applied: stored shows it, or what is stored by now.
func (postgres) judge(stored driver.Versioned, c Change, again func() (driver.Versioned, error)) (Outcome, error) {
	o := c.state().Judge(stored)
	if o != Applied {
		return o, nil
	}
	stored, err := again()
	if err != nil {
		return Stale, err
	}
	if o = c.state().Judge(stored); o == Applied {
		return Stale, errMoved
	}
	return o, nil
}

func (postgres) show(ctx context.Context, db driver.SQL, table, entity string) (s State, err error) {
	_, err = row(ctx, db, `select version, tie, deleted, terminal, changed_at from `+table+` where entity = $1::text`,
		[]any{entity}, &s.Stamp.Version, &s.Stamp.Tie, &s.Deleted, &s.Terminal, &s.Changed)
	s.Changed = s.Changed.UTC()
	return s, err
}

// purge makes an array of what it deletes, because that is made once: a plan may
// run a subquery for each row, and its limit is then none.
func (postgres) purge(ctx context.Context, db driver.SQL, table string, age time.Duration, limit int) (int64, error) {
	return db.Exec(ctx, fmt.Sprintf(`delete from %[1]s where entity = any (array(
		select entity from %[1]s where deleted and changed_at < clock_timestamp() - $1::bigint * interval '1 microsecond'
		order by changed_at limit $2::bigint for update skip locked))`, table), age.Microseconds(), int64(limit))
}

const applyColumnPostgres = `
with stored as (
	select %[2]s as version, %[3]s as tie, %[4]s as terminal from %[1]s where %[5]s = $1),
raised as (
	update %[1]s set %[6]s where %[5]s = $1 and %[7]s
	returning 1)
select version, tie, terminal, (select count(*) from raised) > 0 from stored`

func (p postgres) applyColumn(ctx context.Context, db driver.SQL, q columns, c Change) (rows int, o Outcome, err error) {
	version, tie, terminal := "coalesce("+q.version+", 0)::bigint", "''::text", "false"
	set := q.version + " = $2::bigint"
	if q.tie != "" {
		tie, set = "coalesce("+q.tie+"::text, '')", set+", "+q.tie+" = $3::text"
	}
	if q.terminal != "" {
		terminal, set = "coalesce("+q.terminal+", false)", set+", "+q.terminal+" = $4::boolean"
	}
	query := fmt.Sprintf(applyColumnPostgres, q.table, version, tie, terminal, q.key, set, lets(version, tie, terminal, c.TerminalWins))
	var stored driver.Versioned
	var raised bool
	err = db.Query(ctx, query, []any{c.Entity, c.Stamp.Version, c.Stamp.Tie, c.Terminal}, func(scan func(...any) error) error {
		rows++
		return scan(&stored.Stamp.Version, &stored.Stamp.Tie, &stored.Terminal, &raised)
	})
	if err != nil || raised || rows != 1 {
		return rows, Applied, err
	}
	o, err = p.judge(stored, c, func() (now driver.Versioned, err error) {
		found, err := row(ctx, db, fmt.Sprintf(`select %s, %s, %s from %s where %s = $1`, version, tie, terminal, q.table, q.key),
			[]any{c.Entity}, &now.Stamp.Version, &now.Stamp.Tie, &now.Terminal)
		if err == nil && !found {
			err = noRow("apply change", q.table, c.Entity)
		}
		return now, err
	})
	return rows, o, err
}

func (postgres) placeholder(n int) string { return fmt.Sprintf("$%d", n) }

func (postgres) thisRow(key string, n int, value string) (string, []any) {
	return fmt.Sprintf("%s = $%d", key, n), []any{value}
}
