package backend

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// ShedLockTable is where ShedLock keeps its locks unless told otherwise.
const ShedLockTable = "shedlock"

// shedLockColumns are what ShedLock writes, as text or whole numbers: name, who,
// the microseconds since it was taken, and until it ends. Its times have no zone
// and are those of UTC if it uses the database's clock.
const (
	shedLockPostgres = `select name, locked_by,
	(extract(epoch from (now() at time zone 'utc') - locked_at) * 1000000)::bigint,
	(extract(epoch from lock_until - (now() at time zone 'utc')) * 1000000)::bigint
from {table} where lock_until > now() at time zone 'utc' and starts_with(name, $1) order by name collate "C" limit $2`
	shedLockMySQL = `select name, locked_by,
	timestampdiff(microsecond, locked_at, utc_timestamp(6)),
	timestampdiff(microsecond, utc_timestamp(6), lock_until)
from {table} where lock_until > utc_timestamp(6) and left(name, char_length(?)) = ? order by binary name limit ?`
)

// HasShedLock reports whether this backend is one where ShedLock may have a table.
func (t Target) HasShedLock() bool { return t.kind == "postgres" || t.kind == "mysql" }

// ShedLock lists up to limit locks that ShedLock holds in a table, "name" or
// "schema.name", in byte order, as foreign holders; it changes nothing. ok is false
// if there is no such table. Times are right if ShedLock uses the database's clock.
func (t Target) ShedLock(ctx context.Context, table, prefix string, limit int) (locks []driver.LockState, ok bool, err error) {
	list := t.shedLockPostgres
	if t.kind == "mysql" {
		list = t.shedLockMySQL
	}
	locks, ok, err = list(ctx, table, prefix, limit)
	var pg *pgconn.PgError
	var my *client.MySQLError
	if errors.As(err, &pg) || errors.As(err, &my) {
		err = &interlock.Error{Op: "list ShedLock's locks", Driver: t.kind, Kind: interlock.Definite, Err: err}
	}
	return locks, ok, err
}

func (t Target) shedLockPostgres(ctx context.Context, table, prefix string, limit int) (locks []driver.LockState, ok bool, err error) {
	cfg, err := t.postgresConfig()
	if err != nil {
		return nil, false, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, false, onOneLine(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // nothing is under way on it
	quoted := pgx.Identifier(strings.Split(table, ".")).Sanitize()
	if err := conn.QueryRow(ctx, `select to_regclass($1) is not null`, quoted).Scan(&ok); err != nil || !ok {
		return nil, false, err
	}
	rows, err := conn.Query(ctx, strings.ReplaceAll(shedLockPostgres, "{table}", quoted), prefix, limit)
	if err != nil {
		return nil, true, err
	}
	defer rows.Close()
	for rows.Next() {
		if locks, err = appendShedLock(locks, rows.Scan); err != nil {
			return nil, true, err
		}
	}
	return locks, true, rows.Err()
}

func (t Target) shedLockMySQL(ctx context.Context, table, prefix string, limit int) (locks []driver.LockState, ok bool, err error) {
	db, err := t.dialMySQL()
	if err != nil {
		return nil, false, err
	}
	defer db.Close()
	schema, name, qualified := strings.Cut(table, ".")
	if !qualified {
		schema, name = strings.TrimPrefix(t.path, "/"), table
	}
	const exists = `select count(*) > 0 from information_schema.tables where table_schema = ? and table_name = ?`
	if err := db.QueryRowContext(ctx, exists, schema, name).Scan(&ok); err != nil || !ok {
		return nil, false, err
	}
	quoted := backquoted(schema) + "." + backquoted(name)
	rows, err := db.QueryContext(ctx, strings.ReplaceAll(shedLockMySQL, "{table}", quoted), prefix, prefix, limit)
	if err != nil {
		return nil, true, err
	}
	defer rows.Close()
	for rows.Next() {
		if locks, err = appendShedLock(locks, rows.Scan); err != nil {
			return nil, true, err
		}
	}
	return locks, true, rows.Err()
}

func backquoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

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
