package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// ErrNotFound means that a dead letter, or a parked key, is not there. Errors with it are Definite,
// and nothing was changed.
var ErrNotFound = errors.New("not found")

// A Letter is a message that is not to be delivered any more.
type Letter struct {
	Message
	Place     int64 // in the order of all messages
	Attempts  int
	LastError string
	Added     time.Time // by the database's clock, as Died
	Died      time.Time
}

// A LetterQuery chooses dead letters. The zero value chooses the first hundred.
type LetterQuery struct {
	Key   string // if not empty
	After int64  // only those behind that Place
	Limit int    // how many at most; 0 means 100
}

// Letters lists dead letters of a queue in the order in which they were added.
func (t Table) Letters(ctx context.Context, db driver.SQL, name string, l LetterQuery) ([]Letter, error) {
	q, err := t.open("list dead letters", name, db)
	if err != nil {
		return nil, err
	}
	where, args := `queue = ? and id > ?`, []any{name, l.After}
	if l.Key != "" {
		where, args = where+` and msg_key = ?`, append(args, l.Key)
	}
	if l.Limit <= 0 {
		l.Limit = 100
	}
	var all []Letter
	err = q.Each(ctx, `select id, message_id, msg_key, headers, payload, class, attempts, last_error, added, died from {dead}
		where `+where+` order by id limit `+strconv.Itoa(l.Limit), args, func(scan func(...any) error) error {
		var m Letter
		var headers string
		var class int
		var added, died int64
		if err := scan(&m.Place, &m.ID, &m.Key, &headers, &m.Payload, &class, &m.Attempts, &m.LastError, &added, &died); err != nil {
			return err
		}
		m.Priority, m.Added, m.Died = Priority(class), time.UnixMicro(added).UTC(), time.UnixMicro(died).UTC()
		var err error
		m.Headers, err = decode(headers)
		all = append(all, m)
		return err
	})
	return all, err
}

// Replay delivers dead letters again, each in its former place: before what was added to its key
// later and is not handled. If one is not there the error is an [ErrNotFound].
func (t Table) Replay(ctx context.Context, db driver.SQL, name string, places ...int64) error {
	q, err := t.open("replay dead letters", name, db)
	if err != nil || len(places) == 0 {
		return err
	}
	these, args := q.among("id", places)
	where, args := ` where queue = ? and `+these, append([]any{name}, args...)
	lanes, err := q.letters(ctx, where, args, len(places))
	if err != nil {
		return err
	}
	if _, err := q.Exec(ctx, `insert into {messages} (id, queue, lane, message_id, msg_key, headers, payload, class, attempts, last_error, not_before, added)
		select id, queue, lane, message_id, msg_key, headers, payload, class, 0, {empty}, {micros start}, added from {dead}`+where, args...); err != nil {
		return err
	}
	if _, err := q.Exec(ctx, `delete from {dead}`+where, args...); err != nil {
		return err
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	return q.arrive(ctx, name, announced{lanes: lanes, classes: make([]int64, len(lanes))})
}

// letters locks dead letters, and returns their lanes.
func (q tables) letters(ctx context.Context, where string, args []any, want int) ([]int64, error) {
	lanes, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {dead}`+where+` for update`, args...)
	if err == nil && len(lanes) != want {
		err = q.Refused(fmt.Errorf("%w: there are %d of %d dead letters", ErrNotFound, len(lanes), want))
	}
	return lanes, err
}

// Edit replaces the payload of a dead letter. If it is not there the error is an [ErrNotFound].
func (t Table) Edit(ctx context.Context, db driver.SQL, name string, place int64, payload []byte) error {
	q, err := t.open("edit dead letter", name, db)
	if err != nil {
		return err
	}
	if len(payload) > MaxPayload {
		return &MessageError{Why: fmt.Sprintf("its payload has %d bytes; at most %d are allowed", len(payload), MaxPayload)}
	}
	where, args := ` where queue = ? and id = ?`, []any{name, place}
	if _, err := q.letters(ctx, where, args, 1); err != nil {
		return err
	}
	if payload == nil {
		payload = []byte{}
	}
	_, err = q.Exec(ctx, `update {dead} set payload = {?}`+where, append([]any{payload}, args...)...)
	return err
}

// Discard deletes dead letters. If one is not there the error is an [ErrNotFound].
func (t Table) Discard(ctx context.Context, db driver.SQL, name string, places ...int64) error {
	q, err := t.open("discard dead letters", name, db)
	if err != nil || len(places) == 0 {
		return err
	}
	these, args := q.among("id", places)
	where, args := ` where queue = ? and `+these, append([]any{name}, args...)
	if _, err := q.letters(ctx, where, args, len(places)); err != nil {
		return err
	}
	_, err = q.Exec(ctx, `delete from {dead}`+where, args...)
	return err
}

// Resume lets a parked key go on. One that is not parked is an [ErrNotFound].
func (t Table) Resume(ctx context.Context, db driver.SQL, name, key string) error {
	q, err := t.open("resume key", key, db)
	if err != nil {
		return err
	}
	resumed, err := q.Exec(ctx, `update {groups} set state = 0, ready_at = {micros start} where queue = ? and lane = ? and state = `+strconv.Itoa(parked),
		name, laneIn(name, Message{Key: key}))
	if err == nil && resumed == 0 {
		err = q.Refused(fmt.Errorf("%w: it is not parked", ErrNotFound))
	}
	return err
}

// A Status is how a queue is doing.
type Status struct {
	Queue    string
	Messages int64 // unfinished, those that are handled included
	Dead     int64
	Parked   int64 // keys
	Leased   int64 // keys, or messages without one
	// OldestMicros is the microseconds since the oldest unfinished message was added.
	OldestMicros int64
}

// Status shows all queues that have messages or dead letters, by name. It counts rows.
func (t Table) Status(ctx context.Context, db driver.SQL) ([]Status, error) {
	q, err := t.open("show queues", "", db)
	if err != nil {
		return nil, err
	}
	return sqltable.List(ctx, q.Tables, `select n.queue, cast(sum(n.m) as {pg bigint}{maria signed}), cast(sum(n.d) as {pg bigint}{maria signed}), cast(sum(n.p) as {pg bigint}{maria signed}), cast(sum(n.l) as {pg bigint}{maria signed}), max(n.age) from (
			select queue, count(*) as m, 0 as d, 0 as p, 0 as l, {micros start} - min(added) as age from {messages} group by queue
			union all select queue, 0, count(*), 0, 0, 0 from {dead} group by queue
			union all select queue, 0, 0, sum(case when state = 2 then 1 else 0 end), sum(state & 1), 0 from {groups} where state > 0 group by queue
		) n group by n.queue order by n.queue`, nil, func(s *Status) []any {
		return []any{&s.Queue, &s.Messages, &s.Dead, &s.Parked, &s.Leased, &s.OldestMicros}
	})
}
