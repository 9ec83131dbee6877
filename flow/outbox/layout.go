package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// DefaultSlices is how many slices a table has if it does not say.
const DefaultSlices = 8

// MaxSlices is how many a table has at most.
const MaxSlices = 4096

// A LayoutError tells that a table has another number of slices, or, if Stored is 0,
// that [Table.Create] never made it. It is Definite.
type LayoutError struct {
	Table        string
	Stored, Want int
}

// Error shows both numbers.
func (e *LayoutError) Error() string {
	if e.Stored == 0 {
		return fmt.Sprintf("outbox %s has no layout: make it with Table.Create", e.Table)
	}
	return fmt.Sprintf("outbox %s has %d slices, not %d", e.Table, e.Stored, e.Want)
}

// ErrorKind is [interlock.Definite].
func (e *LayoutError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A Layout is over how many slices the keys of a table are spread. [SetSlices] changes
// it.
type Layout struct {
	Slices   int
	Changing bool // a change to this number has begun and has not ended: relays wait for its end

	changes int // how often it was changed
}

// Layout reads the number of slices. A table without one, or with another one than
// Table.Slices, is a [*LayoutError].
func (t Table) Layout(ctx context.Context, db driver.SQL) (Layout, error) {
	s, err := t.open("read layout", db)
	if err != nil {
		return Layout{}, err
	}
	return s.layout(ctx, "")
}

// layout reads two rows: the number of slices, which is below zero while it is being
// changed, and the number of changes. lock ends the statement.
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

// errLayoutChanged ends what was begun under another layout.
var errLayoutChanged error = &interlock.Error{Op: "use layout", Kind: interlock.Definite, Err: errors.New("the number of slices was changed")}

// unchanged is errLayoutChanged if the layout is not the one that the caller knows. A
// relay calls it after its reads: changes are counted, so that no message was moved
// before the last of them. Before writes it locks the layout by lock.
func (s store) unchanged(ctx context.Context, known Layout, lock string) error {
	l, err := s.layout(ctx, lock)
	if err == nil && l != known {
		err = errLayoutChanged
	}
	return err
}

// settled is how many slices there are, or a Retryable error during a change.
func (s store) settled(ctx context.Context) (Layout, error) {
	l, err := s.layout(ctx, "")
	if err == nil && l.Changing {
		err = &interlock.Error{Op: "read layout", Name: s.table.name(), Kind: interlock.Retryable,
			Err: fmt.Errorf("the number of slices is being changed to %d: relays wait until SetSlices has ended", l.Slices)}
	}
	return l, err
}

// sliceOf is the slice of a row's lane, in SQL: as [spread] and a modulo.
func sliceOf(slices string) string { return `mod((lane >> 1) & 9223372036854775807, ` + slices + `)` }
