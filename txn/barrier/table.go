package barrier

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Table keeps a row for each branch in a table of the participant's own database,
// beside the data that its functions change. The zero value is ready once
// [Table.Create] made the tables. It is safe for concurrent use, with a transaction
// for each.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_barrier". It is at
	// most 56 bytes, and trusted: never take it from a request.
	Name string
	// Level is the isolation of the transactions that functions begin here. The zero
	// value is the session's.
	Level driver.Isolation
	// Attempts is how often a transaction is run that the database undid because of
	// others; 0 means [DefaultAttempts].
	Attempts int
	// Patience is how long a call to the outside may take: its context ends then, and
	// until then no other call of its branch is let to the outside. It is whole
	// microseconds; 0 means [DefaultPatience].
	Patience time.Duration
	// Idle is how long the server lets a transaction that is begun here stand still between
	// two statements: then it ends the transaction, so that a process that is stopped within
	// one does not keep the row locks. It bounds what a function does between two statements
	// too, and is at least a second; 0 means [DefaultIdle], below zero is the session's own
	// setting. A transaction that the caller began is the caller's to bound.
	Idle time.Duration
	// Alarm receives each violation, before it is returned; nil disables it. It must
	// return at once.
	Alarm func(*ViolationError)

	sleep  func(context.Context, time.Duration) bool // nil is by the clock
	random func() float64                            // nil is the process's
}

// What holds if nothing else is said.
const (
	DefaultAttempts = 5
	DefaultPatience = 30 * time.Second
	// DefaultIdle is half of the default timeout of a call, so that one that waits for the
	// locks of a stopped process still succeeds.
	DefaultIdle = 15 * time.Second
)

func (t Table) attempts() int { return max(1, cmp.Or(t.Attempts, DefaultAttempts)) }

func (t Table) patience() time.Duration {
	if t.Patience <= 0 {
		return DefaultPatience
	}
	return max(t.Patience, time.Microsecond)
}

// bounded is a transaction that the server can be asked to end; see driver.Tx.
type bounded interface {
	Bound(ctx context.Context, idle, statement time.Duration) error
}

// bound makes the server end a transaction that stands still. It comes before the first
// statement that locks something.
func (t Table) bound(ctx context.Context, tx bounded) error {
	if t.Idle < 0 {
		return nil
	}
	return tx.Bound(ctx, max(cmp.Or(t.Idle, DefaultIdle), time.Second), 0)
}

// wait is false if ctx ended meanwhile.
func (t Table) wait(ctx context.Context, d time.Duration) bool {
	if t.sleep != nil {
		return t.sleep(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t Table) chance() float64 {
	if t.random != nil {
		return t.random()
	}
	return rand.Float64()
}

const marksSuffix = "_mark"

// names are the quoted names of the tables, and of PostgreSQL's index, which stands
// in the schema of its table.
type names struct{ rows, marks, begun string }

// within puts names into a statement.
func (n names) within(query string) string {
	return strings.NewReplacer("{rows}", n.rows, "{marks}", n.marks, "{begun}", n.begun).Replace(query)
}

// lender is a database that statements are sent to.
type lender struct {
	driver.SQL
	names
	dialect
}

func (t Table) open(op string, db driver.SQL) (l lender, err error) {
	d, ok := dialects[db.Dialect()]
	if !ok {
		return l, failure.Bug(op, t.Name, "SQL of %q is not spoken", string(db.Dialect()))
	}
	l = lender{SQL: db, dialect: d}
	name := cmp.Or(t.Name, "interlock_barrier")
	for _, of := range []struct {
		to           *string
		name, suffix string
	}{
		{&l.marks, name, marksSuffix}, {&l.rows, name, ""},
		{&l.begun, name[strings.LastIndexByte(name, '.')+1:], "_begun"},
	} {
		if *of.to, err = sqltext.Identifier(db.Dialect(), of.name, of.suffix); err != nil {
			return l, err
		}
	}
	return l, nil
}

// Create makes the table of branches, and one of the low-water mark, named with
// "_mark" at the end, unless they exist. Several processes may do it at once. It
// takes effect when the transaction commits, on MariaDB at once: there it commits
// what was done in the transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	const op = "create barrier"
	l, err := t.open(op, db)
	if err != nil {
		return err
	}
	for _, query := range l.create() {
		if _, err := db.Exec(ctx, l.within(query)); err != nil {
			return failure.About(op, l.rows, err)
		}
	}
	return failure.About(op, l.marks, l.addExcepted(ctx, cmp.Or(t.Name, "interlock_barrier")+marksSuffix))
}

// addExcepted adds a column to the table of marks that a former version created. Nobody
// who calls Create waits for it otherwise.
func (l lender) addExcepted(ctx context.Context, marks string) error {
	there, schema := false, ""
	if i := strings.LastIndexByte(marks, '.'); i >= 0 {
		schema, marks = marks[:i], marks[i+1:]
	}
	err := l.Query(ctx, l.text(`select 1 from information_schema.columns where table_name = ? and column_name = 'excepted'
and table_schema = coalesce(nullif(?, ''), `+l.schema()+`)`), []any{marks, schema}, func(scan func(...any) error) error {
		there = true
		return scan(new(int))
	})
	if err != nil || there {
		return err
	}
	_, err = l.Exec(ctx, l.within(`alter table {marks} add column if not exists excepted `+l.excepted()))
	return err
}
