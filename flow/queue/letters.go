package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// ErrNotFound means that a dead letter or a parked key does not exist. Errors with it are Definite,
// and nothing has changed.
var ErrNotFound = errors.New("not found")

// A DeadLetter is a message that is not delivered any more.
type DeadLetter struct {
	Message
	Place     int64 // in the order of all messages
	Attempts  int
	LastError string
	Added     time.Time // by the clock of the database, as is Died
	Died      time.Time
}

// A DeadLetterQuery selects dead letters. The zero value selects the first hundred.
type DeadLetterQuery struct {
	Key   string // if not empty
	After int64  // only those after that Place
	Limit int    // at most so many; 0 means 100
}

// DeadLetters lists dead letters of a queue in the order in which they were added.
func (t Table) DeadLetters(ctx context.Context, db driver.SQL, name string, l DeadLetterQuery) ([]DeadLetter, error) {
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
	var all []DeadLetter
	err = q.Each(ctx, `select id, message_id, msg_key, headers, payload, class, attempts, last_error, added, died from {dead}
		where `+where+` order by id limit `+strconv.Itoa(l.Limit), args, func(scan func(...any) error) error {
		var m DeadLetter
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

// DeadLetter returns the dead letter of a place, or an [ErrNotFound].
func (t Table) DeadLetter(ctx context.Context, db driver.SQL, name string, place int64) (DeadLetter, error) {
	all, err := t.DeadLetters(ctx, db, name, DeadLetterQuery{After: place - 1, Limit: 1})
	if err == nil && (len(all) == 0 || all[0].Place != place) {
		err = &interlock.Error{Op: "show dead letter", Name: name, Kind: interlock.Definite, Err: fmt.Errorf("%w: no dead letter at place %d", ErrNotFound, place)}
	}
	if err != nil {
		return DeadLetter{}, err
	}
	return all[0], nil
}

// By is who changes a queue by hand, and why. Neither may be blank. The audit table keeps both for at
// least 90 days.
type By struct{ Actor, Reason string }

// act opens a table for an operation that the audit records.
func (t Table) act(op, name string, db driver.SQL, by By) (tables, error) {
	if strings.TrimSpace(by.Actor) == "" || strings.TrimSpace(by.Reason) == "" {
		return tables{}, failure.Bug(op, name, "an actor and a reason are required for the audit")
	}
	return t.open(op, name, db)
}

// Replay delivers dead letters again, each at its former place: before later messages of its key
// that are not handled yet. If one does not exist, the error is an [ErrNotFound].
func (t Table) Replay(ctx context.Context, db driver.SQL, name string, by By, places ...int64) error {
	q, err := t.act("replay dead letters", name, db, by)
	if err != nil || len(places) == 0 {
		return err
	}
	lanes, err := q.letters(ctx, "replay", name, by, places)
	if err != nil {
		return err
	}
	where, args := q.chosen(name, places)
	if _, err := q.Exec(ctx, `insert into {messages} (id, queue, lane, message_id, msg_key, headers, payload, class, attempts, last_error, not_before, added)
		select id, queue, lane, message_id, msg_key, headers, payload, class, 0, {empty}, {micros start}, added from {dead}`+where, args...); err != nil {
		return err
	}
	if _, err := q.Exec(ctx, `delete from {dead}`+where, args...); err != nil {
		return err
	}
	// The priority of a key is that of its last message.
	of, args := q.of(name, lanes)
	last, err := sqltable.List(ctx, q.Tables, `select lane, class from {messages} where id in (select max(id) from {messages} where `+of+` group by lane) order by lane`,
		args, func(a *arrival) []any { return []any{&a.lane, &a.class} })
	if err != nil {
		return err
	}
	var keyed announced
	for _, a := range last {
		keyed.lanes, keyed.classes = append(keyed.lanes, a.lane), append(keyed.classes, a.class)
	}
	return q.arrive(ctx, name, keyed)
}

// chosen returns the condition that selects dead letters by place, and its parameters.
func (q tables) chosen(name string, places []int64) (string, []any) {
	these, args := q.among("id", places)
	return ` where queue = ? and ` + these, append([]any{name}, args...)
}

// letters locks dead letters, writes the audit, and returns their lanes.
func (q tables) letters(ctx context.Context, action, name string, by By, places []int64) ([]int64, error) {
	where, args := q.chosen(name, places)
	lanes, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {dead}`+where+` for update`, args...)
	if err != nil {
		return nil, err
	}
	if len(lanes) != len(slices.Compact(slices.Sorted(slices.Values(places)))) {
		return nil, q.Refused(fmt.Errorf("%w: only %d of %d dead letters exist", ErrNotFound, len(lanes), len(places)))
	}
	_, err = q.Exec(ctx, `insert into {audit} (action, queue, place, message_id, msg_key, reason, done_by, done_at)
		select '`+action+`', queue, id, message_id, msg_key, {?}, {?}, {micros start} from {dead}`+where+` order by id`,
		append([]any{sqltable.Clean(by.Reason), sqltable.Clean(by.Actor)}, args...)...)
	return lanes, err
}

// Edit replaces the payload of a dead letter. If it does not exist, the error is an [ErrNotFound].
func (t Table) Edit(ctx context.Context, db driver.SQL, name string, by By, place int64, payload []byte) error {
	q, err := t.act("edit dead letter", name, db, by)
	if err != nil {
		return err
	}
	if len(payload) > MaxPayload {
		return &MessageError{Why: fmt.Sprintf("its payload has %d bytes; at most %d are allowed", len(payload), MaxPayload)}
	}
	if _, err := q.letters(ctx, "edit", name, by, []int64{place}); err != nil {
		return err
	}
	if payload == nil {
		payload = []byte{}
	}
	_, err = q.Exec(ctx, `update {dead} set payload = {?} where queue = ? and id = ?`, payload, name, place)
	return err
}

// Discard deletes dead letters. If one does not exist, the error is an [ErrNotFound].
func (t Table) Discard(ctx context.Context, db driver.SQL, name string, by By, places ...int64) error {
	q, err := t.act("discard dead letters", name, db, by)
	if err != nil || len(places) == 0 {
		return err
	}
	if _, err := q.letters(ctx, "discard", name, by, places); err != nil {
		return err
	}
	where, args := q.chosen(name, places)
	_, err = q.Exec(ctx, `delete from {dead}`+where, args...)
	return err
}

// Resume continues a parked key. If it is not parked, the error is an [ErrNotFound].
func (t Table) Resume(ctx context.Context, db driver.SQL, name string, by By, key string) error {
	q, err := t.act("resume key", name, db, by)
	if err != nil {
		return err
	}
	resumed, err := q.Exec(ctx, `update {groups} set state = 0, ready_at = {micros start} where queue = ? and lane = ? and state = `+strconv.Itoa(parked),
		name, laneIn(name, Message{Key: key}))
	if err == nil && resumed == 0 {
		err = q.Refused(fmt.Errorf("%w: key %q is not parked", ErrNotFound, key))
	}
	if err != nil {
		return err
	}
	_, err = q.Exec(ctx, `insert into {audit} (action, queue, place, message_id, msg_key, reason, done_by, done_at)
		values ('resume', ?, 0, {empty}, {?}, {?}, {?}, {micros start})`, name, key, sqltable.Clean(by.Reason), sqltable.Clean(by.Actor))
	return err
}

// A Stuck is a key, or a message without a key, that waits after a failure or is parked.
type Stuck struct {
	Key       string
	Place     int64 // of its first message
	ID        string
	Attempts  int // failed attempts of its first message
	LastError string
	Parked    bool          // until Resume
	Wait      time.Duration // until the next attempt, if it is not parked; 0 if it is due
}

// Stuck lists at most limit keys that are parked or whose first message has failed, by place; 0
// means 100. It reads all messages of the queue.
func (t Table) Stuck(ctx context.Context, db driver.SQL, name string, limit int) ([]Stuck, error) {
	q, err := t.open("show queue", name, db)
	if err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = 100
	}
	var all []Stuck
	err = q.Each(ctx, `select m.msg_key, m.id, m.message_id, m.attempts, m.last_error, g.state, m.not_before - {micros start}
		from {messages} m join {groups} g on g.queue = m.queue and g.lane = m.lane
		where m.queue = ? and (m.attempts > 0 or g.state & 2 = 2)
			and m.id = (select min(o.id) from {messages} o where o.queue = m.queue and o.lane = m.lane)
		order by m.id limit `+strconv.Itoa(limit), []any{name}, func(scan func(...any) error) error {
		var s Stuck
		var state, wait int64
		if err := scan(&s.Key, &s.Place, &s.ID, &s.Attempts, &s.LastError, &state, &wait); err != nil {
			return err
		}
		if s.Parked = state&parked != 0; !s.Parked {
			s.Wait = time.Duration(max(wait, 0)) * time.Microsecond
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// A Status has the counts of a queue.
type Status struct {
	Queue    string
	Messages int64 // unfinished, including those in a handler
	Dead     int64
	Parked   int64 // keys
	Leased   int64 // keys, or messages without one
	// OldestMicros is the microseconds since the oldest unfinished message was added.
	OldestMicros int64
}

// Status returns all queues that have messages or dead letters, by name. It counts rows.
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
