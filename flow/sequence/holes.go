package sequence

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// An OpenHole is an open hole.
type OpenHole struct {
	Hole
	Opened time.Time // by the clock of the database
}

// Open lists the open holes of a stream, the oldest first, at most limit. A limit below 1 is a Bug.
func (t Table) Open(ctx context.Context, db driver.SQL, stream string, limit int) (holes []OpenHole, err error) {
	q, err := t.list("list holes", db, stream, limit)
	if err != nil {
		return nil, err
	}
	var opened int64
	err = q.Each(ctx, `select name, epoch, from_seq, to_seq, {micros opened_at} from {holes}
		where stream = ? and closed_at is null order by opened_at, name, epoch, from_seq limit ?`, []any{stream, limit}, func(scan func(...any) error) error {
		var h OpenHole
		err := scan(&h.Key, &h.Epoch, &h.From, &h.To, &opened)
		h.Opened = time.UnixMicro(opened).UTC()
		holes = append(holes, h)
		return err
	})
	return holes, err
}

// list opens the tables to list rows of a stream.
func (t Table) list(op string, db driver.SQL, stream string, limit int) (tables, error) {
	if err := checkStream(op, stream); err != nil {
		return tables{}, err
	}
	if limit < 1 {
		return tables{}, failure.Bug(op, stream, "a limit of %d", limit)
	}
	return t.open(op, stream, db)
}

// WriteOff closes an open hole whose events will never arrive. If one arrives after that, it is a
// duplicate. The error is an [ErrNoHole] if no open hole is exactly h.
func (t Table) WriteOff(ctx context.Context, db driver.SQL, stream string, h Hole) error {
	const op = "write off hole"
	if err := checkNames(op, stream, h.Key); err != nil {
		return err
	}
	q, err := t.open(op, h.Key, db)
	if err != nil {
		return err
	}
	if _, err := q.lock(ctx, stream, h.Key); err != nil {
		return err
	}
	closed, err := q.close(ctx, stream, h)
	if err == nil && !closed {
		err = noHole(h.Key, Position{h.Epoch, h.From})
	}
	return err
}

// close closes an open hole. It reports false if no open hole is exactly h.
func (q tables) close(ctx context.Context, stream string, h Hole) (closed bool, err error) {
	n, err := q.Exec(ctx, `update {holes} set closed_at = {now}
		where stream = ? and name = ? and epoch = ? and from_seq = ? and to_seq = ? and closed_at is null`,
		stream, h.Key, h.Epoch, h.From, h.To)
	if err == nil && n > 0 {
		err = q.count(ctx, stream, h.Key, -1)
	}
	return n > 0, err
}

// Purge deletes at most limit holes of a stream that were closed longer ago than older, by the
// database's clock, and returns how many. Closed holes are kept for people only.
func (t Table) Purge(ctx context.Context, db driver.SQL, stream string, older time.Duration, limit int) (int64, error) {
	const op = "purge holes"
	if err := checkStream(op, stream); err != nil {
		return 0, err
	}
	if older < 0 || limit < 1 {
		return 0, failure.Bug(op, stream, "an age of %v, a limit of %d", older, limit)
	}
	q, err := t.open(op, stream, db)
	if err != nil {
		return 0, err
	}
	return q.Delete(ctx, sqltable.Deletion{Table: "holes", Key: "stream, name, epoch, from_seq",
		Where: `stream = ? and closed_at < {now} - {span}`, Args: []any{stream, older.Microseconds()}, Limit: limit})
}

// fill removes a position from its hole, in the transaction.
func (t Table) fill(ctx context.Context, db driver.SQL, stream, key string, at Position) (State, error) {
	const op = "fill"
	q, err := t.open(op, key, db)
	if err != nil {
		return State{}, err
	}
	// The key is locked first, as by a move, so that there is no deadlock.
	s, err := q.lock(ctx, stream, key)
	if err != nil {
		return s, err
	}
	h := Hole{Key: key, Epoch: at.Epoch}
	found, err := q.Row(ctx, `select from_seq, to_seq from {holes}
		where stream = ? and name = ? and epoch = ? and from_seq <= ? and to_seq >= ? and closed_at is null`,
		[]any{stream, key, at.Epoch, at.Seq, at.Seq}, &h.From, &h.To)
	if err != nil || !found {
		if err == nil {
			err = noHole(key, at)
		}
		return s, err
	}
	more, err := q.split(ctx, stream, h, at.Seq)
	if err == nil && more != 0 {
		err = q.count(ctx, stream, key, more)
	}
	s.Holes += more
	return s, err
}

// split closes seq in an open hole, and leaves the rest open. It returns the change of the number of
// open holes.
func (q tables) split(ctx context.Context, stream string, h Hole, seq int64) (more int64, err error) {
	before, after := h.without(seq)
	// The row of h becomes that of before or, if that is empty, of seq.
	to, closed := before.To, ``
	if before.empty() {
		to, closed, more = seq, `, closed_at = {now}`, -1
	}
	_, err = q.Exec(ctx, `update {holes} set to_seq = ?`+closed+` where stream = ? and name = ? and epoch = ? and from_seq = ?`,
		to, stream, h.Key, h.Epoch, h.From)
	if err == nil && !before.empty() {
		err = q.part(ctx, stream, h, seq, seq, true)
	}
	if err == nil && !after.empty() {
		more++
		err = q.part(ctx, stream, h, after.From, after.To, false)
	}
	return more, err
}

// part inserts a part of h, open or closed, with the age of h.
func (q tables) part(ctx context.Context, stream string, h Hole, from, to int64, closed bool) error {
	_, err := q.Exec(ctx, `insert into {holes} (stream, name, epoch, from_seq, to_seq, opened_at, closed_at)
		select stream, name, epoch, ?, ?, opened_at, case when ? then {now} end from {holes}
		where stream = ? and name = ? and epoch = ? and from_seq = ?`, from, to, closed, stream, h.Key, h.Epoch, h.From)
	return err
}

// count changes the number of open holes of a key.
func (q tables) count(ctx context.Context, stream, key string, more int64) error {
	_, err := q.Exec(ctx, `update {keys} set open_holes = open_holes + ? where stream = ? and name = ?`, more, stream, key)
	return err
}
