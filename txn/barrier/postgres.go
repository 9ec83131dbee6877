package barrier

import (
	"context"
	"strings"
	"time"
)

// postgres keeps rows in PostgreSQL.
//
// The low-water mark is the newest row of its table, shared by every call until its
// transaction ends. A new mark is a new row; the old ones are deleted afterwards,
// which waits for the calls that share them, while those that come later share the
// new one: nobody waits for a mark, and a mark does not wait for a pause in the
// calls. Who comes with a snapshot that shows only what is deleted finds no mark at
// all. So once one row is left all calls that go on have compared with it, whatever
// their isolation.
type postgres struct{}

func (postgres) create() []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock barrier: create', 0))`,
		`create table if not exists {rows} (
			transaction_id text collate "C" not null,
			branch text collate "C" not null,
			step text collate "C" not null,
			state text not null check (state in ` + states() + `),
			previous text not null,
			hash bytea not null,
			known int not null,
			result bytea not null,
			busy bigint not null,
			remaining bigint not null,
			attempts bigint not null,
			begun bigint not null,
			primary key (transaction_id, branch, step))`,
		`create index if not exists {begun} on {rows} (begun)`,
		`create table if not exists {marks} (generation bigint primary key, mark bigint not null, excepted ` + postgres{}.excepted() + `)`,
		`insert into {marks} (generation, mark) select 1, 0 where not exists (select 1 from {marks})`,
	}
}

// nowPostgres is the same in all of a statement.
const nowPostgres = `(extract(epoch from statement_timestamp()) * 1000000)::bigint`

const claimPostgres = `
insert into {rows} as b (transaction_id, branch, step, state, previous, hash, known, result, busy, remaining, attempts, begun)
select ?::text, ?::text, ?::text, '{first}', 'absent', ?::bytea, {known}, ?::bytea, {lease}, 0, 1, m.begun
from (select s.mark, s.excepted, ?::bigint as begun from {marks} as s order by s.generation desc limit 1 for share of s) as m
where (m.begun >= m.mark or position(?::text in m.excepted) > 0) {there}
on conflict (transaction_id, branch, step) do update set
	previous = b.state,
	remaining = greatest(0, b.busy - {now}),
	attempts = case when {ready} then b.attempts + 1 else b.attempts end,
	busy = case when {ready} then excluded.busy else b.busy end,
	result = case when {replace} and {ready} then excluded.result else b.result end,
	state = case when {ready} then {moved} else b.state end
returning previous, hash, known, result, remaining, attempts`

const readyPostgres = `(b.state in {moving} and b.busy <= {now}
		and (b.hash = excluded.hash or b.hash = '' or excluded.hash = ''))`

func (p postgres) claim(c claim, lease time.Duration) (string, []any) {
	args := []any{c.Transaction, c.Branch, c.Step, filled(c.hash), filled(c.result)}
	leased, there := `0`, ``
	if c.outside {
		leased = `{now} + ?::bigint`
		args = append(args, lease.Microseconds())
	}
	args = append(args, c.begun(), needle(c.Transaction))
	if c.event == finish {
		there = `and exists (select 1 from {rows} where ` + isRow + `)`
		args = append(args, c.Transaction, c.Branch, c.Step)
	}
	query := strings.ReplaceAll(claimPostgres, "{ready}", readyPostgres)
	return p.text(c.filled(query, "b.state", leased, there, nowPostgres)), args
}

func (postgres) schema() string { return `current_schema()` }

func (postgres) excepted() string { return `text not null default ''` }

func (postgres) mark() string {
	return `select mark, excepted from {marks} order by generation desc limit 1`
}

func (postgres) text(query string) string {
	return numbered(strings.ReplaceAll(query, "{empty?}", "?"))
}

func (postgres) raise() []string {
	return []string{
		`insert into {marks} (generation, mark, excepted) select max(generation) + 1, ?::bigint, ?::text from {marks}
having max(mark) < ?::bigint and ?::bigint <= ` + nowPostgres + ` / 1000 on conflict do nothing`,
		`delete from {marks} where generation < (select max(generation) from {marks})`,
	}
}

// remove goes by the oldest mark there is, and spares what any mark excepts. What is
// locked is left for the next time.
func (postgres) remove(ctx context.Context, l lender, limit int) (int, error) {
	n, err := l.exec(ctx, `with old as materialized (
	select transaction_id, branch, step from {rows} where begun < (select min(mark) from {marks}) - ?::bigint
	and not exists (select 1 from {marks} as m where position(',' || encode(convert_to(transaction_id, 'UTF8'), 'hex') || ',' in m.excepted) > 0)
	order by begun limit ?::bigint for update skip locked)
delete from {rows} as b using old
where b.transaction_id = old.transaction_id and b.branch = old.branch and b.step = old.step`, spread, int64(limit))
	return int(n), err
}
