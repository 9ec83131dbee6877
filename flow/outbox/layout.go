package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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

// Error has both numbers.
func (e *LayoutError) Error() string {
	if e.Stored == 0 {
		return fmt.Sprintf("outbox %s has no layout: create it by Table.Create", e.Table)
	}
	return fmt.Sprintf("outbox %s has %d slices, not %d", e.Table, e.Stored, e.Want)
}

// ErrorKind is [interlock.Definite].
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
		switch {
		case row == 2:
			l.changes = value
		case value < 0:
			l.Slices, l.Changing = -value, true
		default:
			l.Slices = value
		}
		return err
	}); err != nil {
		return Layout{}, s.failed(err)
	}
	if l.Slices == 0 || s.table.Slices != 0 && s.table.Slices != l.Slices {
		return Layout{}, &LayoutError{Table: s.table.name(), Stored: l.Slices, Want: s.table.Slices}
	}
	return l, nil
}

// errLayoutChanged ends an operation that began under another layout.
var errLayoutChanged error = &interlock.Error{Op: "use layout", Kind: interlock.Definite, Err: errors.New("the number of slices was changed")}

// unchanged returns errLayoutChanged if the layout is not the known one. A relay calls it after its
// reads; as changes are counted, equal layouts mean that no message was moved before the last read.
// Before writes, lock locks the layout.
func (s store) unchanged(ctx context.Context, known Layout, lock string) error {
	l, err := s.layout(ctx, lock)
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
