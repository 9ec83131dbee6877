package sequence

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Table keeps positions and holes in a database, a row for each. Call [Table.Create] once; the zero
// value works. It is safe for concurrent use, with a transaction for each call. [InTx] returns a Store
// of it.
type Table struct {
	// Name is the table, or schema.table; empty means "interlock_sequence". It prefixes the names of
	// the other tables, has at most 58 bytes, and is not escaped: never take it from a request.
	Name string
}

// opens returns how many holes a move opens.
func (m Move) opens() int64 {
	if m.Hole == nil {
		return 0
	}
	return 1
}

// tables are a Table in one transaction, for one operation. On MariaDB names are compared by their
// bytes. Rows are read and changed by locking statements, which see what was committed last, not the
// snapshot of the transaction. Every affected row changes, so both ways of clients to count affected
// rows give the same number.
type tables struct{ sqltable.Tables }

var layout = sqltable.Layout{Part: "sequence", Default: "interlock_sequence",
	Tables: map[string]string{"keys": "", "holes": "_hole", "dead": "_dead"}}

func (t Table) open(op, name string, db driver.SQL) (tables, error) {
	q, err := layout.Open(op, name, db, t.Name)
	return tables{q}, err
}

// Create creates the tables of positions, of holes ("_hole") and of dead letters ("_dead") unless they
// exist. Several processes may call it at the same time. It takes effect when the transaction commits;
// on MariaDB at once, where it also commits the transaction's earlier statements.
func (t Table) Create(ctx context.Context, db driver.SQL) error {
	q, err := t.open("create table", "", db)
	if err != nil {
		return err
	}
	return q.Create(ctx,
		`create table if not exists {keys} (
			stream {string 255} not null,
			name {string 512} not null,
			epoch bigint not null,
			seq bigint not null,
			open_holes bigint not null,
			moved_at {time} not null,
			primary key (stream, name)){engine}`,
		`create table if not exists {holes} (
			stream {string 255} not null,
			name {string 512} not null,
			epoch bigint not null,
			from_seq bigint not null,
			to_seq bigint not null,
			opened_at {time} not null,
			closed_at {time},
			primary key (stream, name, epoch, from_seq)){engine}`,
		`create table if not exists {dead} (
			stream {string 255} not null,
			name {string 512} not null,
			epoch bigint not null,
			seq bigint not null,
			payload {bytes} not null,
			attempts int not null,
			error text not null,
			died_at {time} not null,
			primary key (stream, name, epoch, seq)){engine}`)
}

// Position returns the state of a key, as the transaction sees it; an unknown key has the zero State.
func (t Table) Position(ctx context.Context, db driver.SQL, stream, key string) (s State, err error) {
	const op = "read position"
	if err := checkNames(op, stream, key); err != nil {
		return s, err
	}
	q, err := t.open(op, key, db)
	if err != nil {
		return s, err
	}
	return q.read(ctx, stream, key, ``)
}

// read returns the state of a key. lock ends the query.
func (q tables) read(ctx context.Context, stream, key, lock string) (s State, err error) {
	_, err = q.Row(ctx, `select epoch, seq, open_holes from {keys} where stream = ? and name = ? `+lock,
		[]any{stream, key}, &s.Epoch, &s.Seq, &s.Holes)
	return s, err
}

// lock locks a key against moves and returns its state.
func (q tables) lock(ctx context.Context, stream, key string) (State, error) {
	return q.read(ctx, stream, key, `for update`)
}

// Begin sets the first position of a key, for a consumer that starts in the middle, such as from a
// snapshot. Events up to at are duplicates from then on. If the key is known already, the error is an
// [ErrConflict].
func (t Table) Begin(ctx context.Context, db driver.SQL, stream, key string, at Position) error {
	const op = "begin key"
	if err := checkNames(op, stream, key); err != nil {
		return err
	}
	if at.Epoch < 0 || at.Seq < 0 || at == (Position{}) {
		return failure.Bug(op, key, "%v is not a position to begin after", at)
	}
	return t.advance(ctx, db, Move{Stream: stream, Key: key, To: at})
}

// advance makes a move in the transaction.
func (t Table) advance(ctx context.Context, db driver.SQL, m Move) error {
	q, err := t.open("advance", m.Key, db)
	if err != nil {
		return err
	}
	moved, err := q.move(ctx, m)
	switch {
	case err != nil:
		return err
	case !moved:
		return conflict(m.Key, m.From)
	case m.Hole == nil:
		return nil
	}
	_, err = q.Exec(ctx, `insert into {holes} (stream, name, epoch, from_seq, to_seq, opened_at)
		values (?, ?, ?, ?, ?, {now})`, m.Stream, m.Key, m.Hole.Epoch, m.Hole.From, m.Hole.To)
	return err
}

// move moves and locks a key if it is at m.From, and counts the hole of m, if any. It is one statement;
// on MariaDB two for a key that may have no row yet: the first one creates or locks the row.
func (q tables) move(ctx context.Context, m Move) (moved bool, err error) {
	args := []any{m.To.Epoch, m.To.Seq, m.opens(), m.Stream, m.Key, m.From.Epoch, m.From.Seq}
	if m.From == (Position{}) && !q.Maria() {
		n, err := q.Exec(ctx, `insert into {keys} as k (epoch, seq, open_holes, stream, name, moved_at) values (?, ?, ?, ?, ?, {now})
			on conflict (stream, name) do update set epoch = excluded.epoch, seq = excluded.seq,
				open_holes = k.open_holes + excluded.open_holes, moved_at = excluded.moved_at
			where k.epoch = ? and k.seq = ?`, args...)
		return n > 0, err
	}
	if m.From == (Position{}) {
		_, err := q.Exec(ctx, `insert into {keys} (stream, name, epoch, seq, open_holes, moved_at)
			values (?, ?, 0, 0, 0, {now}) on duplicate key update stream = values(stream)`, m.Stream, m.Key)
		if err != nil {
			return false, err
		}
	}
	n, err := q.Exec(ctx, `update {keys} set epoch = ?, seq = ?, open_holes = open_holes + ?, moved_at = {now}
		where stream = ? and name = ? and epoch = ? and seq = ?`, args...)
	return n > 0, err
}
