package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mariadb keeps an outbox in MariaDB. Texts are kept as bytes, which no collation
// compares; an empty one is written in hexadecimal digits, because there is a
// sql_mode that makes it NULL. No count of affected rows is relied on.
type mariadb struct{}

func (mariadb) now() string { return `timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))` }

func (mariadb) empty() string { return `x''` }

func (mariadb) onConflict(unique string, columns []string) string {
	if len(columns) == 0 {
		columns = []string{unique}
	}
	set := make([]string, len(columns))
	for i, c := range columns {
		set[i] = c + ` = values(` + c + `)`
	}
	return `on duplicate key update ` + strings.Join(set, ", ")
}

// create's constraint on slice refuses what no layout was found for, in every
// sql_mode.
func (mariadb) create(n names) []string {
	const engine = ` engine = InnoDB default charset = utf8mb4`
	return []string{
		`create table if not exists ` + n.messages + ` (
			id bigint not null auto_increment primary key,
			message_id varbinary(255) not null unique,
			slice int not null check (slice >= 0),
			lane bigint not null,
			parked tinyint not null default 0,
			topic varbinary(255) not null,
			msg_key varbinary(512) not null,
			headers mediumblob not null,
			payload longblob not null,
			not_before bigint not null,
			added bigint not null,
			key ready (slice, parked, id),
			key parked (lane, parked, id))` + engine,
		`create table if not exists ` + n.lanes + ` (
			lane bigint not null primary key,
			slice int not null,
			topic varbinary(255) not null,
			msg_key varbinary(512) not null,
			message_id varbinary(255) not null,
			head bigint not null,
			why varchar(16) not null,
			attempts int not null,
			last_error blob not null,
			since bigint not null,
			wait_until bigint not null,
			key due (slice, wait_until))` + engine,
		`create table if not exists ` + n.dead + ` (
			id bigint not null primary key,
			message_id varbinary(255) not null,
			slice int not null,
			lane bigint not null,
			topic varbinary(255) not null,
			msg_key varbinary(512) not null,
			headers mediumblob not null,
			payload longblob not null,
			added bigint not null,
			attempts int not null,
			last_error blob not null,
			died bigint not null,
			key lane (lane, id),
			key letter (message_id, id))` + engine,
		`create table if not exists ` + n.audit + ` (
			id bigint not null auto_increment primary key,
			action varchar(16) not null,
			message_id varbinary(255) not null,
			topic varbinary(255) not null,
			msg_key varbinary(512) not null,
			reason blob not null,
			done_by blob not null,
			done_at bigint not null)` + engine,
		`create table if not exists ` + n.layout + ` (one int not null primary key, slices int not null)` + engine,
		`create table if not exists ` + n.stripes + ` (stripe int not null primary key)` + engine,
	}
}

// stripes bounds the rows that are locked, which are never deleted: two keys that
// share one, a pair in 262144, wait for each other.
const stripes = 1 << 18

// insert locks first, by a statement of its own. A row that is there is locked by
// writing it over with itself, which InnoDB notices and leaves as it was.
func (mariadb) insert(ctx context.Context, s store, a add) error {
	if len(a.lanes) > 0 {
		locked := make([]int64, len(a.lanes))
		for i, lane := range a.lanes {
			locked[i] = spread(lane) % stripes
		}
		slices.Sort(locked)
		locked = slices.Compact(locked)
		query := `insert into ` + s.names.stripes + ` (stripe) values (` + strings.ReplaceAll(list(locked), ",", "),(") +
			`) on duplicate key update stripe = values(stripe)`
		if _, err := s.Exec(ctx, query); err != nil {
			return err
		}
	}
	// The lock keeps the number from being changed until the transaction ends.
	which := ``
	if s.table.Slices != 0 {
		which = ` and abs(slices) = ` + strconv.Itoa(s.table.Slices)
	}
	layout := `(select abs(slices) from {layout} where one = 1` + which + mariadb{}.shared() + `)`
	row := `(?, coalesce(mod(?, ` + layout + `), -1), ?, ?, coalesce(?, x''), coalesce(?, x''), coalesce(?, x''), ?, {now})`
	args := make([]any, 0, 8*len(a.messages))
	for _, m := range a.messages {
		args = append(args, m.ID, spread(m.lane), m.lane, m.Topic, m.Key, m.headers, m.Payload, a.notBefore)
	}
	query := `insert into {messages} (message_id, slice, lane, topic, msg_key, headers, payload, not_before, added) values ` +
		strings.TrimSuffix(strings.Repeat(row+",", len(a.messages)), ",")
	return s.refused(ctx, s.exec(ctx, query, args...))
}

// refused finds out which constraint refused an insert. The transaction goes on
// after that, as far as MariaDB is concerned.
func (s store) refused(ctx context.Context, err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != "23000" {
		return err
	}
	if _, err := s.layout(ctx, ""); err != nil {
		return err
	}
	return &DuplicateError{Table: s.table.name()}
}

// without leaves out rows of a table by their ids.
func without(table string, ids []int64) string {
	if len(ids) == 0 {
		return ""
	}
	return ` and ` + table + `.id not in (` + list(ids) + `)`
}

func (mariadb) ready(slice, limit int, busy []int64) (string, []any) {
	return readyColumns + `
		from {messages} o force index (ready) left join {lanes} l on l.lane = o.lane
		where o.slice = ? and o.parked = 0` + without("o", busy) + `
		order by o.id limit ` + strconv.Itoa(limit), []any{slice}
}

// among joins a table, as m, with some of its primary keys, one by one and in their
// order. InnoDB may read a small table from end to end for a list of keys, and waits
// for every row on its way that a transaction has locked.
func among(table, key, ids string) string {
	return `json_table(` + ids + `, '$[*]' columns (id bigint path '$')) d straight_join ` + table +
		` m force index (primary) on m.` + key + ` = d.id`
}

func (mariadb) deleteBy(table, key string, ids []int64) string {
	return `delete m from ` + among(table, key, `'[`+list(ids)+`]'`) + ` where true`
}

func (mariadb) updateBy(table, key string, ids []int64, set string) string {
	return `update ` + among(table, key, `'[`+list(ids)+`]'`) + ` set ` + set + ` where true`
}

func (mariadb) lockBy(table, key string, ids []int64) string {
	return `select m.` + key + ` from ` + among(table, key, `'[`+list(ids)+`]'`) + ` order by m.` + key + ` for update`
}

func (mariadb) remove(ids []int64) (string, []any) {
	return `delete m from ` + among(`{messages}`, `id`, `?`), []any{`[` + list(ids) + `]`}
}

func (mariadb) shared() string { return ` lock in share mode` }

func (mariadb) exclusive(wait time.Duration) ([]string, string) {
	return nil, ` for update wait ` + strconv.Itoa(int(wait/time.Second))
}

// rule is nothing: each insert reads the number of slices as it is then, and keeps it
// from being changed.
func (mariadb) rule(names, int) []string { return nil }
