package sequence

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// Table keeps positions and holes in a database: one row a key, and one a hole. The
// zero value is ready once [Table.Create] made the tables. It is safe for concurrent
// use, with a transaction for each. [InTx] makes a Store of it.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_sequence". It is at
	// most 58 bytes, and is trusted: never take it from a request.
	Name string
}

// opens is how many holes a move opens.
func (m Move) opens() int64 {
	if m.Hole == nil {
		return 0
	}
	return 1
}

// tables is the quoted names of the table of positions and of the one of holes.
type tables struct{ keys, holes, dead string }

func (t Table) quoted(d driver.Dialect) (q tables, err error) {
	if t.Name == "" {
		t.Name = "interlock_sequence"
	}
	for _, part := range []struct {
		to     *string
		suffix string
	}{{&q.holes, "_hole"}, {&q.dead, "_dead"}, {&q.keys, ""}} {
		if *part.to, err = sqltext.Identifier(d, t.Name, part.suffix); err != nil {
			return q, err
		}
	}
	return q, nil
}

// dialect is how a database keeps positions and holes. Its methods return the errors
// of the database as they are.
type dialect interface {
	// create is the statements that make the tables.
	create(q tables) []string
	// advance moves a key, which locks it, unless it is not at m.From, and counts the
	// hole of m, if there is one.
	advance(ctx context.Context, db driver.SQL, q tables, m Move) (moved bool, err error)
	// lock locks a key against moves and tells where it is.
	lock(ctx context.Context, db driver.SQL, q tables, stream, key string) (State, error)
	// purge deletes closed holes of a stream older than so many microseconds, up to a limit.
	purge(q tables) string
	// sql is a statement written with ? for parameters, now() for the database's
	// time and unix_micro(column) for a time as a number.
	sql(query string) string
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// speak finds how to talk to db, of which op is wanted.
func (t Table) speak(op string, db driver.SQL) (dialect, tables, error) {
	q, err := t.quoted(db.Dialect())
	d, ok := dialects[db.Dialect()]
	if err == nil && !ok {
		err = failure.Bug(op, t.Name, "SQL of %q is not spoken", string(db.Dialect()))
	}
	return d, q, err
}

// Create makes the table of positions, one of holes and one of dead letters, named with
// "_hole" and "_dead" at the end, unless they exist. Several processes may do it at once. It takes effect when
// the transaction commits, on MariaDB at once: there it commits what was done in the
// transaction before.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	d, q, err := t.speak("create table", db)
	if err != nil {
		return err
	}
	for _, query := range d.create(q) {
		if _, err := db.Exec(ctx, query); err != nil {
			return failure.About("create table", q.keys, err)
		}
	}
	return nil
}

// Position tells where a key is, as the transaction sees it; one that nothing is
// known of has the zero State.
func (t Table) Position(ctx context.Context, db driver.SQL, stream, key string) (s State, err error) {
	const op = "read position"
	if err := both(op, stream, key); err != nil {
		return s, err
	}
	d, q, err := t.speak(op, db)
	if err != nil {
		return s, err
	}
	_, err = row(ctx, db, d.sql(`select epoch, seq, open_holes from `+q.keys+` where stream = ? and name = ?`),
		[]any{stream, key}, &s.Epoch, &s.Seq, &s.Holes)
	return s, t.failed(op, key, err)
}

// Begin sets where a key begins, for a consumer that comes in the middle, with a
// snapshot perhaps: events up to at are duplicates from then on. It fails with
// [ErrConflict] if something is known of the key already.
func (t Table) Begin(ctx context.Context, db driver.SQL, stream, key string, at Position) error {
	const op = "begin key"
	if err := both(op, stream, key); err != nil {
		return err
	}
	if at.Epoch < 0 || at.Seq < 0 || at == (Position{}) {
		return failure.Bug(op, key, "%v is no position to begin after", at)
	}
	return t.advance(ctx, db, Move{Stream: stream, Key: key, To: at})
}

// advance makes a move in the transaction.
func (t Table) advance(ctx context.Context, db driver.SQL, m Move) error {
	const op = "advance"
	d, q, err := t.speak(op, db)
	if err != nil {
		return err
	}
	is, err := d.advance(ctx, db, q, m)
	switch {
	case err != nil:
		return t.failed(op, m.Key, err)
	case !is:
		return moved(m.Key, m.From)
	case m.Hole == nil:
		return nil
	}
	_, err = db.Exec(ctx, d.sql(`insert into `+q.holes+` (stream, name, epoch, from_seq, to_seq, opened_at)
		values (?, ?, ?, ?, ?, now())`), m.Stream, m.Key, m.Hole.Epoch, m.Hole.From, m.Hole.To)
	return t.failed(op, m.Key, err)
}

// failed is about, see [failure.Table].
func (t Table) failed(op, name string, err error) error {
	return failure.Table(op, name, "sequence", err)
}

// row runs a query that gives one row at most, and scans it.
func row(ctx context.Context, db driver.SQL, query string, args []any, dest ...any) (found bool, err error) {
	err = db.Query(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}
