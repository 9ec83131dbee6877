package idempotency

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// A Table is where an [SQL] keeps records. The zero value is ready once
// [Table.Create] made it.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_idempotency". It
	// is at most 56 bytes, and is trusted: never take it from a request.
	Name string
}

// names are quoted: the table, and its indexes, which have no schema.
type names struct{ table, due, old string }

// speak finds how to talk to a database.
func (t Table) speak(is driver.Dialect) (d dialect, n names, err error) {
	d, ok := dialects[is]
	if !ok {
		return nil, n, failure.Bug("name table", t.Name, "SQL of %q is not spoken", string(is))
	}
	if t.Name == "" {
		t.Name = "interlock_idempotency"
	}
	alone := t.Name[strings.LastIndexByte(t.Name, '.')+1:]
	n.table, err = sqltext.Identifier(is, t.Name, "")
	if err == nil {
		n.due, err = sqltext.Identifier(is, alone, "_due")
	}
	if err == nil {
		n.old, err = sqltext.Identifier(is, alone, "_old")
	}
	return d, n, err
}

// Create makes the table and its indexes unless they exist. Several processes may
// do it at once. It takes effect when the transaction commits, on MariaDB at once:
// there it commits what was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	d, n, err := t.speak(db.Dialect())
	if err != nil {
		return err
	}
	for _, query := range d.create(n) {
		if _, err := db.Exec(ctx, query); err != nil {
			return failure.About("create table", n.table, err)
		}
	}
	return nil
}

// failed is about, and names the command that creates the table.
func (t Table) failed(op, key string, err error) error {
	return failure.Table(op, key, "idempotency", err)
}
