package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// store is a table in one transaction. Times are stored as microseconds since 1970 by the clock of the
// database.
type store struct {
	sqltable.Tables
	table Table
}

func (s store) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.Exec(ctx, query, args...)
	return err
}

// list returns numbers, at least one, for an IN list.
func list(ids []int64) string { return strings.Trim(sqltable.Numbers(ids), "{}") }

// most returns the limit of an ordered query. PostgreSQL does not know a limit in a subquery, and uses
// the index that has the order. Without statistics it would otherwise read all rows and sort them.
func (s store) most(limit int) string {
	if s.Maria() {
		return ` limit ` + strconv.Itoa(limit)
	}
	return ` limit (select ` + strconv.Itoa(limit) + `)`
}

// readyMessages selects rows that are not parked and not busy, in order.
func (s store) readyMessages(slice, limit int, busy []int64) (query string, args []any) {
	index := ``
	if s.Maria() {
		index = `force index (ready)`
	}
	but, args := s.without(`o.id`, busy)
	return readyColumns + `
		from {messages} o ` + index + ` left join {lanes} l on l.lane = o.lane
		where o.slice = ? and o.parked = false` + but + `
		order by o.id` + s.most(limit), append([]any{slice}, args...)
}

// deleteBy, updateBy and lockBy return statements on the rows of a table, called m, by a list of
// primary keys. They touch no other row.
func (s store) deleteBy(table, key string, ids []int64) string {
	if s.Maria() {
		return `delete m from ` + among(table, key, `'[`+list(ids)+`]'`) + ` where true`
	}
	return `delete from ` + table + ` m where m.` + key + ` in (` + list(ids) + `)`
}

func (s store) updateBy(table, key string, ids []int64, set string) string {
	if s.Maria() {
		return `update ` + among(table, key, `'[`+list(ids)+`]'`) + ` set ` + set + ` where true`
	}
	return `update ` + table + ` m set ` + set + ` where m.` + key + ` in (` + list(ids) + `)`
}

func (s store) lockBy(table, key string, ids []int64) string {
	if s.Maria() {
		return `select m.` + key + ` from ` + among(table, key, `'[`+list(ids)+`]'`) + ` order by m.` + key + ` for update`
	}
	return `select m.` + key + ` from ` + table + ` m where m.` + key + ` in (` + list(ids) + `) order by m.` + key + ` for update`
}

// delivered returns the statement that deletes messages; its text is the same for any number.
func (s store) delivered(ids []int64) (string, []any) {
	if s.Maria() {
		return `delete m from ` + among(`{messages}`, `id`, `?`), []any{`[` + list(ids) + `]`}
	}
	return `delete from {messages} where id = any (?::text::bigint[])`, []any{sqltable.Numbers(ids)}
}

// checkViolation is the SQLSTATE of a row that violates the constraint of [mover.begin].
const checkViolation = "23514"

// failed explains an error that a change of the number of slices caused.
func (s store) failed(err error) error {
	var e *interlock.Error
	if failure.SQLState(err) == checkViolation && errors.As(err, &e) {
		return &interlock.Error{Op: e.Op, Name: s.table.name(), Kind: interlock.Retryable,
			Err: fmt.Errorf("the number of slices was changed while the transaction ran, repeat the transaction: %w", err)}
	}
	return err
}

// DefaultSlices is the number of slices of a new table.
const DefaultSlices = 8

// MaxSlices is the largest number of slices.
const MaxSlices = 4096

// A LayoutError means that a table has another number of slices or, if Stored is 0, that
// [Table.Create] was not called. It is Definite.
type LayoutError struct {
	Table        string
	Stored, Want int
}

// Error returns a message with both numbers.
func (e *LayoutError) Error() string {
	if e.Stored == 0 {
		return fmt.Sprintf("outbox %s has no layout: create it by Table.Create", e.Table)
	}
	return fmt.Sprintf("outbox %s has %d slices, not %d", e.Table, e.Stored, e.Want)
}

// ErrorKind returns [interlock.Definite].
func (e *LayoutError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A Layout is the number of slices of a table. [SetSlices] changes it.
type Layout struct {
	Slices   int
	Changing bool // a change to this number is in progress: relays wait for its end

	changes int // the number of changes so far
}

// Layout reads the number of slices. If it is not stored, or differs from Table.Slices, the error is
// a [*LayoutError].
func (t Table) Layout(ctx context.Context, db driver.SQL) (Layout, error) {
	s, err := t.open("read layout", db)
	if err != nil {
		return Layout{}, err
	}
	return s.layout(ctx, "")
}

// layout reads two rows: the number of slices, negative during a change, and the number of changes.
// lock ends the statement.
func (s store) layout(ctx context.Context, lock string) (l Layout, err error) {
	if err := s.Each(ctx, `select one, slices from {layout} where one in (1, 2) `+lock, nil, func(scan func(...any) error) error {
		var row, value int
		err := scan(&row, &value)
		l.set(row, value)
		return err
	}); err != nil {
		return Layout{}, s.failed(err)
	}
	if l.Slices == 0 || s.table.Slices != 0 && s.table.Slices != l.Slices {
		return Layout{}, &LayoutError{Table: s.table.name(), Stored: l.Slices, Want: s.table.Slices}
	}
	return l, nil
}

// set adds a row of the table.
func (l *Layout) set(row, value int) {
	switch {
	case row == 2:
		l.changes = value
	case value < 0:
		l.Slices, l.Changing = -value, true
	default:
		l.Slices = value
	}
}

// errLayoutChanged ends an operation that began under another layout.
var errLayoutChanged error = &interlock.Error{Op: "use layout", Kind: interlock.Definite, Err: errors.New("the number of slices was changed")}

// unchanged locks the layout, and returns errLayoutChanged if it is not the known one.
func (s store) unchanged(ctx context.Context, known Layout) error {
	l, err := s.layout(ctx, `{share}`)
	if err == nil && l != known {
		err = errLayoutChanged
	}
	return err
}

// settled returns the layout, or a Retryable error during a change.
func (s store) settled(ctx context.Context) (Layout, error) {
	l, err := s.layout(ctx, "")
	if err == nil && l.Changing {
		err = &interlock.Error{Op: "read layout", Name: s.table.name(), Kind: interlock.Retryable,
			Err: fmt.Errorf("the number of slices is being changed to %d: relays wait until SetSlices has ended", l.Slices)}
	}
	return l, err
}

// sliceOf returns the SQL of the slice of a row: [spread] of its lane, modulo the number of slices.
func sliceOf(slices string) string { return `mod((lane >> 1) & 9223372036854775807, ` + slices + `)` }
