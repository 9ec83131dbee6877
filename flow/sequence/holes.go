package sequence

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// An OpenHole is a hole that is open, and since when.
type OpenHole struct {
	Hole
	Opened time.Time // by the database's clock
}

// Open lists holes of a stream that are open, the oldest first, at most limit, which
// is at least 1.
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

// list opens the tables for a list of a stream, with a limit.
func (t Table) list(op string, db driver.SQL, stream string, limit int) (tables, error) {
	if err := named(op, "stream", stream, maxStream); err != nil {
		return tables{}, err
	}
	if limit < 1 {
		return tables{}, failure.Bug(op, stream, "no limit")
	}
	return t.open(op, stream, db)
}

// WriteOff closes an open hole whose events will never come, as it stands; should
// one come nevertheless, it is a duplicate. It fails with [ErrNoHole] if there is no
// open hole that is exactly h.
func (t Table) WriteOff(ctx context.Context, db driver.SQL, stream string, h Hole) error {
	const op = "write off hole"
	if err := both(op, stream, h.Key); err != nil {
		return err
	}
	q, err := t.open(op, h.Key, db)
	if err != nil {
		return err
	}
	if _, err := q.lock(ctx, stream, h.Key); err != nil {
		return err
	}
	n, err := q.Exec(ctx, `update {holes} set closed_at = {now}
		where stream = ? and name = ? and epoch = ? and from_seq = ? and to_seq = ? and closed_at is null`,
		stream, h.Key, h.Epoch, h.From, h.To)
	switch {
	case err != nil:
		return err
	case n == 0:
		return noHole(h.Key, Position{h.Epoch, h.From})
	}
	return q.count(ctx, stream, h.Key, -1)
}

// Purge forgets closed holes of a stream that were closed longer ago than older, by
// the database's clock, at most limit, and returns how many. Nothing depends on them:
// they are for people.
func (t Table) Purge(ctx context.Context, db driver.SQL, stream string, older time.Duration, limit int) (int64, error) {
	const op = "purge holes"
	if err := named(op, "stream", stream, maxStream); err != nil {
		return 0, err
	}
	if older < 0 || limit < 1 {
		return 0, failure.Bug(op, stream, "an age below zero, or no limit")
	}
	q, err := t.open(op, stream, db)
	if err != nil {
		return 0, err
	}
	return q.Delete(ctx, sqltable.Deletion{Table: "holes", Key: "stream, name, epoch, from_seq",
		Where: `stream = ? and closed_at < {now} - {span}`, Args: []any{stream, older.Microseconds()}, Limit: limit})
}

// fill takes a position out of its hole, in the transaction.
func (t Table) fill(ctx context.Context, db driver.SQL, stream, key string, at Position) (State, error) {
	const op = "fill"
	q, err := t.open(op, key, db)
	if err != nil {
		return State{}, err
	}
	// The key first, in the order of those that move it, so that there is no deadlock.
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

// split replaces an open hole by what is left of it beside seq, which is closed. It
// returns how many more open holes there are.
func (q tables) split(ctx context.Context, stream string, h Hole, seq int64) (more int64, err error) {
	before, after := h.without(seq)
	// The row of h begins where before does, or else is that of seq.
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

// part adds a hole that was a part of h, open or closed by now, and as old.
func (q tables) part(ctx context.Context, stream string, h Hole, from, to int64, closed bool) error {
	_, err := q.Exec(ctx, `insert into {holes} (stream, name, epoch, from_seq, to_seq, opened_at, closed_at)
		select stream, name, epoch, ?, ?, opened_at, case when ? then {now} end from {holes}
		where stream = ? and name = ? and epoch = ? and from_seq = ?`, from, to, closed, stream, h.Key, h.Epoch, h.From)
	return err
}

// count adds to the number of a key's open holes.
func (q tables) count(ctx context.Context, stream, key string, more int64) error {
	_, err := q.Exec(ctx, `update {keys} set open_holes = open_holes + ? where stream = ? and name = ?`, more, stream, key)
	return err
}
