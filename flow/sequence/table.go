package sequence

import (
	"context"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
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

// tables are a Table in one transaction, for one operation. On MariaDB names are
// compared by their bytes. Rows are changed and read by statements that lock, which see
// what was committed last whatever the transaction's snapshot shows. Every row that is
// counted as affected is one that changes, so that it does not matter what the client
// counts.
type tables struct{ sqltable.Tables }

var layout = sqltable.Layout{Part: "sequence", Default: "interlock_sequence",
	Tables: map[string]string{"keys": "", "holes": "_hole", "dead": "_dead"}}

func (t Table) open(op, name string, db driver.SQL) (tables, error) {
	q, err := layout.Open(op, name, db, t.Name)
	return tables{q}, err
}

// Create makes the table of positions, one of holes and one of dead letters, named with
// "_hole" and "_dead" at the end, unless they exist. Several processes may do it at once. It takes effect when
// the transaction commits, on MariaDB at once: there it commits what was done in the
// transaction before.
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

// Position tells where a key is, as the transaction sees it; one that nothing is
// known of has the zero State.
func (t Table) Position(ctx context.Context, db driver.SQL, stream, key string) (s State, err error) {
	const op = "read position"
	if err := both(op, stream, key); err != nil {
		return s, err
	}
	q, err := t.open(op, key, db)
	if err != nil {
		return s, err
	}
	return q.read(ctx, stream, key, ``)
}

// read tells where a key is. lock ends the query.
func (q tables) read(ctx context.Context, stream, key, lock string) (s State, err error) {
	_, err = q.Row(ctx, `select epoch, seq, open_holes from {keys} where stream = ? and name = ? `+lock,
		[]any{stream, key}, &s.Epoch, &s.Seq, &s.Holes)
	return s, err
}

// lock locks a key against moves and tells where it is.
func (q tables) lock(ctx context.Context, stream, key string) (State, error) {
	return q.read(ctx, stream, key, `for update`)
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
	q, err := t.open("advance", m.Key, db)
	if err != nil {
		return err
	}
	is, err := q.move(ctx, m)
	switch {
	case err != nil:
		return err
	case !is:
		return moved(m.Key, m.From)
	case m.Hole == nil:
		return nil
	}
	_, err = q.Exec(ctx, `insert into {holes} (stream, name, epoch, from_seq, to_seq, opened_at)
		values (?, ?, ?, ?, ?, {now})`, m.Stream, m.Key, m.Hole.Epoch, m.Hole.From, m.Hole.To)
	return err
}

// move moves a key, which locks it, unless it is not at m.From, and counts the hole of
// m, if there is one. It is one statement, on MariaDB two for a key that may have no row
// yet: the first one locks the row, whether it was there or not.
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
