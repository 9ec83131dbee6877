package sequence

import (
	"context"
	"regexp"
	"strconv"

	"github.com/interlock-dev/interlock/driver"
)

// postgres keeps positions and holes in PostgreSQL.
type postgres struct{}

func (postgres) create(q tables) []string {
	return []string{
		// CREATE … IF NOT EXISTS fails if another session creates it just then.
		`select pg_advisory_xact_lock(hashtextextended('interlock sequence: create', 0))`,
		`create table if not exists ` + q.keys + ` (
			stream text not null,
			name text not null,
			epoch bigint not null,
			seq bigint not null,
			open_holes bigint not null,
			moved_at timestamptz not null,
			primary key (stream, name))`,
		`create table if not exists ` + q.holes + ` (
			stream text not null,
			name text not null,
			epoch bigint not null,
			from_seq bigint not null,
			to_seq bigint not null,
			opened_at timestamptz not null,
			closed_at timestamptz,
			primary key (stream, name, epoch, from_seq))`,
		`create table if not exists ` + q.dead + ` (
			stream text not null,
			name text not null,
			epoch bigint not null,
			seq bigint not null,
			payload bytea not null,
			attempts int not null,
			error text not null,
			died_at timestamptz not null,
			primary key (stream, name, epoch, seq))`,
	}
}

// advance is one statement.
func (p postgres) advance(ctx context.Context, db driver.SQL, q tables, m Move) (bool, error) {
	query := `update ` + q.keys + ` as k set epoch = ?, seq = ?, open_holes = k.open_holes + ?, moved_at = now()
		where stream = ? and name = ? and k.epoch = ? and k.seq = ?`
	args := []any{m.To.Epoch, m.To.Seq, m.opens(), m.Stream, m.Key, m.From.Epoch, m.From.Seq}
	if m.From == (Position{}) { // there may be no row yet
		query = `insert into ` + q.keys + ` as k (epoch, seq, open_holes, stream, name, moved_at) values (?, ?, ?, ?, ?, now())
			on conflict (stream, name) do update set epoch = excluded.epoch, seq = excluded.seq,
				open_holes = k.open_holes + excluded.open_holes, moved_at = excluded.moved_at
			where k.epoch = ? and k.seq = ?`
	}
	n, err := db.Exec(ctx, p.sql(query), args...)
	return n > 0, err
}

func (p postgres) lock(ctx context.Context, db driver.SQL, q tables, stream, key string) (s State, err error) {
	_, err = row(ctx, db, p.sql(`select epoch, seq, open_holes from `+q.keys+` where stream = ? and name = ? for update`),
		[]any{stream, key}, &s.Epoch, &s.Seq, &s.Holes)
	return s, err
}

func (p postgres) purge(q tables) string {
	return p.sql(`delete from ` + q.holes + ` where ctid in (select ctid from ` + q.holes + `
		where stream = ? and closed_at < now() - ? * interval '1 microsecond' limit ?)`)
}

var (
	parameter = regexp.MustCompile(`\?`)
	clock     = regexp.MustCompile(`\bnow\(\)`)
	micros    = regexp.MustCompile(`unix_micro\((\w+)\)`)
)

// sql numbers the parameters. The clock is that of the statement, not that of the
// transaction's begin.
func (postgres) sql(query string) string {
	n := 0
	query = parameter.ReplaceAllStringFunc(query, func(string) string { n++; return "$" + strconv.Itoa(n) })
	query = clock.ReplaceAllString(query, "clock_timestamp()")
	return micros.ReplaceAllString(query, "(extract(epoch from $1) * 1000000)::bigint")
}
