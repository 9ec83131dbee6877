package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// KeyValues is a key-value store with compare-and-swap: a row for each key, and one statement
// for each step, which is one round trip. It implements driver.KeyValues.
type KeyValues struct {
	db    *sql.DB
	table string // quoted
}

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues returns a store in table, "name" or "database.name", which the first swap creates.
// It performs no I/O, and does not close the pool. Sessions of the pool must commit each statement,
// which is the default. The server must not log statements (binlog_format=STATEMENT). A step above
// max_allowed_packet (16 MiB by default; each byte of a value needs two) is rejected, Definite. All
// processes need the same server: a replica or another node of Galera may read an older state.
func NewKeyValues(db *sql.DB, table string) *KeyValues {
	parts := strings.Split(strings.ReplaceAll(table, "`", "``"), ".")
	return &KeyValues{db: db, table: "`" + strings.Join(parts, "`.`") + "`"}
}

// A row of revision 0 belongs to a deleted key, until it is removed.
const keyValuesSchema = `create table if not exists {table} (
	name varbinary(512) not null primary key,
	value mediumblob not null,
	revision bigint not null) engine = InnoDB`

// Get reads keys; see driver.KeyValues.
func (k *KeyValues) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	const op = "get keys"
	got, names := make([]driver.KeyValue, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		if err := driver.CheckName(op, "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
		got[i].Key, names[i] = key, sqltable.Literal(key)
	}
	if len(keys) == 0 {
		return got, nil
	}
	found, err := k.read(ctx, op, keys[0], "name in ("+strings.Join(names, ", ")+")")
	for i, kv := range got {
		if at := slices.IndexFunc(found, func(f driver.KeyValue) bool { return f.Key == kv.Key }); at >= 0 {
			got[i] = found[at]
		}
	}
	return got, err
}

// Scan reads a range of keys; see driver.KeyValues.
func (k *KeyValues) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	where := "name >= " + sqltable.Literal(from)
	if to != "" {
		where += " and name < " + sqltable.Literal(to)
	}
	return k.read(ctx, "scan keys", from, fmt.Sprintf("%s order by name limit %d", where, max(limit, 0)))
}

// read returns the matching rows with values; none if the table does not exist yet.
func (k *KeyValues) read(ctx context.Context, op, name, where string) ([]driver.KeyValue, error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, op, name)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	got, err := all(bounded, k.db, k.sql("select name, value, revision from {table} where revision > 0 and "+where), nil,
		func(rows *sql.Rows) (kv driver.KeyValue, err error) {
			return kv, rows.Scan(&kv.Key, &kv.Value, &kv.Revision)
		})
	if isNumber(err, noTable) {
		return nil, nil
	}
	return got, ofRead(bounded, op, name, err)
}

func (k *KeyValues) sql(text string) string { return strings.ReplaceAll(text, "{table}", k.table) }

// swapKeys has in {wanted} a row for each swap. It locks the existing rows, and writes if all keys
// have their revisions. A concurrently inserted row fails the statement: the comparison of a revision
// with two rows is an error. At REPEATABLE READ it would also lock the gaps of missing keys, in which
// two statements that insert any keys deadlock.
const swapKeys = `set statement max_statement_time = 10 for
begin not atomic
set transaction isolation level read committed;
insert into {table} (name, value, revision)
select s.name, s.value, s.revision from (
	select w.name, w.value, w.revision, w.was, min(coalesce(t.revision, 0) = w.was) over () as fit
	from ({wanted}) w left join {table} t force index (primary) on t.name = w.name for update) s
where s.fit
on duplicate key update
	value = if({table}.revision = s.was, s.value, (select 1 union select 2)),
	revision = s.revision;
end`

const subqueryRows = 1242 // the subquery has more than one row

// Swap does all swaps or none by one statement; see driver.KeyValues. Concurrent swaps of the same
// keys may fail, Retryable. A revision is a random number of 63 bits. Deletions are two statements:
// the second one removes the rows.
func (k *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	const op = "swap keys"
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, problem(op, "", interlock.Bug, err)
	}
	name := swaps[0].Key
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, name)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	revision := 1 + rand.Int64N(1<<63-1)
	query, deleted := k.swapping(swaps, revision)
	conn, err := k.db.Conn(bounded)
	if err != nil { // nothing was sent
		return 0, failure.About(op, name, failed(ctx, inBegin, err))
	}
	defer conn.Close()
	changed, err := swap(bounded, conn, query)
	if isNumber(err, noTable) {
		if _, err = conn.ExecContext(bounded, k.sql(keyValuesSchema)); err == nil {
			changed, err = swap(bounded, conn, query)
		}
	}
	switch {
	case isNumber(err, subqueryRows) || err == nil && changed == 0:
		return 0, nil
	case err != nil:
		return 0, ofStatement(bounded, op, name, err)
	case len(deleted) > 0:
		// A remaining row is used again with its key.
		_, _ = conn.ExecContext(bounded, k.sql("delete from {table} where revision = 0 and name in ("+strings.Join(deleted, ", ")+")"))
	}
	return revision, nil
}

// swap runs the statement once. If that fails before its transaction begins, such as for a missing
// table, the session's next transaction would have the level that the statement sets.
func swap(ctx context.Context, conn *sql.Conn, query string) (changed int64, err error) {
	result, err := conn.ExecContext(ctx, query)
	if err == nil {
		return result.RowsAffected()
	}
	if !isNumber(err, subqueryRows) {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer cancel()
		_, _ = conn.ExecContext(after, "rollback")
	}
	return 0, err
}

// swapping returns the statement, and the keys that it deletes.
func (k *KeyValues) swapping(swaps []driver.Swap, revision int64) (query string, deleted []string) {
	var wanted []string
	for _, s := range slices.SortedFunc(slices.Values(swaps), func(a, b driver.Swap) int { return cmp.Compare(a.Key, b.Key) }) {
		now, value, key := revision, s.Value, sqltable.Literal(s.Key)
		if s.Delete {
			now, value, deleted = 0, nil, append(deleted, key)
		}
		wanted = append(wanted, fmt.Sprintf("select %s name, %s value, %d revision, %d was", key, sqltable.Literal(value), now, s.Revision))
	}
	return k.sql(strings.Replace(swapKeys, "{wanted}", strings.Join(wanted, " union all "), 1)), deleted
}
