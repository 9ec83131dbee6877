package backend

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// ShedLockTable is ShedLock's default table.
const ShedLockTable = "shedlock"

// shedLock has the queries on ShedLock's table in one kind of database. list returns text or
// whole numbers: name, owner, and start and end in microseconds. ShedLock's times have no
// zone; they are UTC if it uses the database's clock.
type shedLock struct{ quote, exists, list string }

var shedLocks = map[driver.Dialect]shedLock{
	driver.Postgres: {`"`, `select to_regclass($1) is not null`,
		`select name, locked_by,
	(extract(epoch from (now() at time zone 'utc') - locked_at) * 1000000)::bigint,
	(extract(epoch from lock_until - (now() at time zone 'utc')) * 1000000)::bigint
from {table} where lock_until > now() at time zone 'utc' and starts_with(name, $1) order by name collate "C" limit $2`},
	driver.MariaDB: {"`", `select count(*) > 0 from information_schema.tables where table_schema = ? and table_name = ?`,
		`select name, locked_by,
	timestampdiff(microsecond, locked_at, utc_timestamp(6)),
	timestampdiff(microsecond, utc_timestamp(6), lock_until)
from {table} where lock_until > utc_timestamp(6) and left(name, char_length(?)) = ? order by binary name limit ?`},
}

// HasShedLock reports whether ShedLock can have a table in this backend.
func (t Target) HasShedLock() bool { return t.Kind() == "postgres" || t.Kind() == "mysql" }

// ShedLock lists up to limit locks of ShedLock in a table, "name" or "schema.name", in byte
// order, as foreign holders. It changes nothing. ok is false if the table does not exist.
// Times are right if ShedLock uses the database's clock.
func (t Target) ShedLock(ctx context.Context, table, prefix string, limit int) (locks []driver.LockState, ok bool, err error) {
	db, err := t.Database(ctx)
	if err != nil {
		return nil, false, err
	}
	defer db.Close()
	err = db.In(ctx, func(tx driver.SQL) error {
		s := shedLocks[tx.Dialect()]
		var parts []string
		for _, part := range strings.Split(table, ".") {
			parts = append(parts, s.quote+strings.ReplaceAll(part, s.quote, s.quote+s.quote)+s.quote)
		}
		quoted := strings.Join(parts, ".")
		sought, args := []any{quoted}, []any{prefix, limit}
		if tx.Dialect() == driver.MariaDB {
			schema, name, qualified := strings.Cut(table, ".")
			if !qualified {
				schema, name = strings.TrimPrefix(t.Path(), "/"), table
			}
			sought, args = []any{schema, name}, []any{prefix, prefix, limit}
		}
		err := tx.Query(ctx, s.exists, sought, func(scan func(...any) error) error { return scan(&ok) })
		if err != nil || !ok {
			return err
		}
		return tx.Query(ctx, strings.ReplaceAll(s.list, "{table}", quoted), args, func(scan func(...any) error) (err error) {
			locks, err = appendShedLock(locks, scan)
			return err
		})
	})
	return locks, ok, err
}

func appendShedLock(locks []driver.LockState, scan func(...any) error) ([]driver.LockState, error) {
	var name string
	var by sql.NullString
	var since, left sql.NullInt64
	if err := scan(&name, &by, &since, &left); err != nil {
		return nil, err
	}
	holder := &driver.Contender{Owner: "ShedLock " + by.String, Foreign: true, Expires: time.Duration(left.Int64) * time.Microsecond}
	if since.Valid {
		holder.Since = time.Now().Add(-time.Duration(since.Int64) * time.Microsecond)
	}
	return append(locks, driver.LockState{Name: name, Holder: holder}), nil
}
