package outbox

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Table keeps messages until they are delivered. The zero value is ready once
// [Table.Create] has made the tables. It is safe for concurrent use, with a
// transaction for each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_outbox". Other
	// tables have a name that begins with it. It is at most 50 bytes, and is
	// trusted: never take it from a request.
	Name string
	// Slices is how many slices keys are spread over; 0 means the stored number, and
	// [DefaultSlices] for Create. Any other number than the stored one is refused with
	// a [*LayoutError]. [SetSlices] changes the stored number.
	Slices int
}

// names are the tables of an outbox, quoted.
type names struct {
	messages string // that are not delivered
	lanes    string // keys that wait, and why
	dead     string // letters that are not to be delivered
	audit    string // what was done by hand
	layout   string // how many slices there are
	stripes  string // what MariaDB locks
	fence    fence.Table
}

func (t Table) name() string {
	if t.Name == "" {
		return "interlock_outbox"
	}
	return t.Name
}

func (t Table) quoted(d driver.Dialect) (n names, err error) {
	for _, part := range []struct {
		to     *string
		suffix string
	}{{&n.messages, ""}, {&n.lanes, "_lane"}, {&n.dead, "_dead"}, {&n.audit, "_audit"}, {&n.layout, "_layout"},
		{&n.stripes, "_stripe"}, {new(string), "_fence_rebase"}} {
		if *part.to, err = sqltext.Identifier(d, t.name(), part.suffix); err != nil {
			return n, err
		}
	}
	n.fence = t.fence()
	return n, nil
}

// fence keeps the marks of the slices.
func (t Table) fence() fence.Table { return fence.Table{Name: t.name() + "_fence"} }

// resource is that of a slice under the fence.
func (t Table) resource(slice int) string { return fmt.Sprintf("%s/%d", t.name(), slice) }

// open finds how to talk to db about t.
func (t Table) open(op string, db driver.SQL) (store, error) {
	if db == nil {
		return store{}, failure.Bug(op, t.name(), "there is no transaction")
	}
	d, ok := dialects[db.Dialect()]
	if !ok {
		return store{}, failure.Bug(op, t.name(), "SQL of %q is not spoken", string(db.Dialect()))
	}
	if t.Slices < 0 || t.Slices > MaxSlices {
		return store{}, failure.Bug(op, t.name(), "%d slices are impossible: 1 to %d", t.Slices, MaxSlices)
	}
	n, err := t.quoted(db.Dialect())
	if err != nil {
		return store{}, err
	}
	return store{SQL: db, dialect: d, names: n, table: t}, nil
}

// Create makes the tables, those of the slices' marks included, unless they exist,
// and stores the number of slices. Several processes may do it at once. It takes
// effect when the transaction commits; on MariaDB at once: there it commits what
// was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	const op = "create outbox"
	s, err := t.open(op, db)
	if err != nil {
		return err
	}
	for _, query := range s.dialect.create(s.names) {
		if _, err := db.Exec(ctx, query); err != nil {
			return s.failed(op, err)
		}
	}
	if err := s.names.fence.Create(ctx, db); err != nil {
		return err
	}
	slices := t.Slices
	if slices == 0 {
		slices = DefaultSlices
	}
	if err := s.exec(ctx, `insert into {layout} (one, slices) values (1, ?), (2, 0) {or_leave one}`, slices); err != nil {
		return s.failed(op, err)
	}
	_, err = s.layout(ctx, "")
	return err
}
