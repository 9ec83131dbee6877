package mysql

import (
	"bytes"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// querier is a pool or one connection of it.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// facts are what the server says of itself.
type facts struct {
	version    string
	durable    bool // a commit is on disk before it is answered
	readOnly   bool
	autocommit bool // of the session
	galera     bool
}

// readOnlyNow is the condition that the server is read-only. The variable is a number, and from
// MariaDB 12 on a word, of which only OFF permits writes.
const readOnlyNow = `concat(@@global.read_only) not in ('0', 'OFF')`

// ask reads the facts.
func ask(ctx context.Context, q querier) (f facts, err error) {
	var flush, binlog, sync int
	var method, doublewrite string
	err = one(ctx, q, `select @@version, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, `+readOnlyNow+`, @@autocommit, coalesce(@@innodb_flush_method, ''), @@innodb_doublewrite`, nil,
		&f.version, &flush, &binlog, &sync, &f.readOnly, &f.autocommit, &method, &doublewrite)
	if err != nil {
		return f, err
	}
	unsynced := strings.EqualFold(method, "nosync") || strings.EqualFold(method, "littlesync") || doublewrite == "0" || doublewrite == "OFF"
	f.durable = (flush == 1 || flush == 3) && (binlog == 0 || sync == 1) && !unsynced
	err = one(ctx, q, `select @@wsrep_on`, nil, &f.galera)
	if isNumber(err, unknownVariable) {
		err = nil
	}
	return f, err
}

// refusal is why the server cannot keep locks; nil if it can.
func (f facts) refusal() error {
	var major, minor int
	_, err := fmt.Sscanf(f.version, "%d.%d", &major, &minor)
	switch {
	case !strings.Contains(f.version, "MariaDB"):
		return fmt.Errorf("the server is %s: MariaDB 10.5 or later is needed, which answers an INSERT with the row", f.version)
	case err == nil && (major < 10 || major == 10 && minor < 5):
		return fmt.Errorf("the server is %s: 10.5 or later is needed", f.version)
	case f.readOnly:
		return errReadOnly
	}
	return nil
}

// create creates tables, unless all of them exist: then the user needs no right to create tables.
func create(ctx context.Context, q querier, o Options, schema []string, tables ...string) error {
	found, names := 0, make([]any, len(tables))
	for i, table := range tables {
		names[i] = o.sql(table)
	}
	err := one(ctx, q, `select count(*) from information_schema.tables where table_schema = database() and table_name in (`+parameters(len(names))+`)`, names, &found)
	if err != nil || found == len(tables) {
		return err
	}
	for _, query := range schema {
		if _, err := q.ExecContext(ctx, o.sql(query)); err != nil {
			return err
		}
	}
	return nil
}

// one runs a query that gives one row at most, and scans it. Without a row
// nothing is scanned, and it is no error.
func one(ctx context.Context, q querier, query string, args []any, dest ...any) error {
	_, err := maybe(ctx, q, query, args, dest...)
	return err
}

func maybe(ctx context.Context, q querier, query string, args []any, dest ...any) (found bool, err error) {
	err = each(ctx, q, query, args, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(dest...)
	})
	return found && err == nil, err
}

// each runs a query. The server answers a change with rows before it commits:
// they count only if the answer comes to its end without an error.
func each(ctx context.Context, q querier, query string, args []any, row func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// each runs a query about locks, of one column, on the connection itself: what database/sql does
// around one costs as much as the query does. Rows are valid during the call; as those of the
// other each, they count only if there is no error.
func (s *session) each(ctx context.Context, query string, row func([]byte) error) error {
	return s.conn.Raw(func(c any) error {
		rows, err := c.(sqldriver.QueryerContext).QueryContext(ctx, query, nil)
		return s.read(rows, err, row)
	})
}

// eachOf is each for a prepared statement.
func (s *session) eachOf(ctx context.Context, prepared sqldriver.Stmt, args []sqldriver.NamedValue, row func([]byte) error) error {
	return s.conn.Raw(func(any) error {
		rows, err := prepared.(sqldriver.StmtQueryContext).QueryContext(ctx, args)
		return s.read(rows, err, row)
	})
}

// argument returns the memory of an argument. It is allocated if the last one had another length.
func (s *session) argument(i, length int) []byte {
	value, _ := s.args[i].Value.([]byte)
	if len(value) != length {
		value = make([]byte, length)
		s.args[i].Value = value
	}
	return value
}

func (s *session) read(rows sqldriver.Rows, err error, row func([]byte) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for {
		switch err := rows.Next(s.value[:]); err {
		case nil:
			text, _ := s.value[0].([]byte)
			if err := row(text); err != nil {
				return err
			}
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// number reads a number, 0 if there is none, and returns what follows the blank after it.
func number(text []byte) (n int64, rest []byte) {
	digits, rest, _ := bytes.Cut(text, []byte{' '})
	n, _ = strconv.ParseInt(string(digits), 10, 64)
	return n, rest
}

// all runs a query and returns its rows.
func all[T any](ctx context.Context, q querier, query string, args []any, read func(*sql.Rows) (T, error)) (found []T, err error) {
	err = each(ctx, q, query, args, func(rows *sql.Rows) error {
		row, err := read(rows)
		found = append(found, row)
		return err
	})
	return found, err
}

// texts reads one column.
func texts(rows *sql.Rows) (text string, err error) {
	err = rows.Scan(&text)
	return text, err
}

// serverTime is a time of the server in microseconds since 2020.
func serverTime(micros int64) time.Time {
	return time.UnixMicro(interlock.EpochUnixMicro + micros).UTC()
}
