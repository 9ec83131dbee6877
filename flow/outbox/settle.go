package outbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// How much of the lanes that wait is read at once.
const (
	dueLanes = 20  // lanes
	laneRows = 100 // messages of each
)

// read reads what a slice has to send, in order of the ids, leaving out what is
// busy. It reads the state, and remembers no place in it: a transaction that commits
// late is seen when it has, whatever its ids are.
func (s store) read(ctx context.Context, slice, limit int, busy []int64) ([]row, error) {
	query, args := s.dialect.due(slice, busy)
	parked, err := s.rows(ctx, query, args, true)
	if err != nil {
		return nil, err
	}
	query, args = s.dialect.ready(slice, limit, busy)
	ready, err := s.rows(ctx, query, args, false)
	if err != nil {
		return nil, err
	}
	rows := append(parked, ready...)
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.id, b.id) })
	return rows, nil
}

// rows is what a statement of [store.read] finds.
func (s store) rows(ctx context.Context, query string, args []any, parked bool) (found []row, err error) {
	err = s.query(ctx, query, args, func(scan func(...any) error) error {
		r := row{parked: parked}
		var headers string
		var early, age, lists int64
		if err := scan(&r.id, &r.ID, &r.Topic, &r.Key, &headers, &r.Payload, &r.lane, &early, &age,
			&lists, &r.attempts, &r.head); err != nil {
			return err
		}
		var err error
		r.Headers, err = decoded(headers)
		r.early, r.age, r.lists = micros(early), micros(age), standing(lists)
		found = append(found, r)
		return err
	})
	return found, s.failed("read outbox", err)
}

func micros(n int64) time.Duration {
	return time.Duration(min(n, int64(forever/time.Microsecond))) * time.Microsecond
}

// settle stores what became of a batch. Doing it again changes nothing.
func (s store) settle(ctx context.Context, slice int, d settlement) error {
	for _, step := range []func(context.Context, int, settlement) error{s.remove, s.park, s.wait, s.ensure, s.bury, s.relieve} {
		if err := step(ctx, slice, d); err != nil {
			return s.failed("settle batch", err)
		}
	}
	return nil
}

func (s store) remove(ctx context.Context, _ int, d settlement) error {
	if len(d.sent) == 0 {
		return nil
	}
	query, args := s.dialect.remove(d.sent)
	return s.exec(ctx, query, args...)
}

func (s store) park(ctx context.Context, _ int, d settlement) error {
	if len(d.park) == 0 {
		return nil
	}
	return s.exec(ctx, s.dialect.updateBy(`{messages}`, `id`, ids64(d.park), `parked = true`))
}

// wait stores which lanes wait, until when, and why.
func (s store) wait(ctx context.Context, slice int, d settlement) error {
	return s.lanes(ctx, slice, d.changes,
		`{or_set lane: message_id head why attempts last_error wait_until}`)
}

// ensure makes a lane wait of which something was parked, if none does.
func (s store) ensure(ctx context.Context, slice int, d settlement) error {
	var queued []change
	for _, r := range d.park {
		queued = append(queued, change{row: row{lane: r.lane, Message: r.Message}, why: whyQueued})
	}
	return s.lanes(ctx, slice, queued, `{or_leave lane}`)
}

func (s store) lanes(ctx context.Context, slice int, changes []change, conflict string) error {
	// In one order, and each once: PostgreSQL refuses to overwrite a row twice.
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.lane, b.lane) })
	changes = slices.CompactFunc(slices.Clone(changes), func(a, b change) bool { return a.lane == b.lane })
	if len(changes) == 0 {
		return nil
	}
	var args []any
	for _, c := range changes {
		args = append(args, c.lane, slice, c.Topic, c.Key, c.ID, c.id, c.why, c.attempts, told(c.err), c.pause.Microseconds())
	}
	row := `(?, ?, ?, coalesce(?, {empty}), ?, ?, ?, ?, coalesce(?, {empty}), {now}, {now} + ?),`
	return s.exec(ctx, `insert into {lanes} (lane, slice, topic, msg_key, message_id, head, why, attempts, last_error, since, wait_until)
		values `+strings.TrimSuffix(strings.Repeat(row, len(changes)), ",")+` `+conflict, args...)
}

// bury moves messages to the dead letters.
func (s store) bury(ctx context.Context, _ int, d settlement) error {
	for _, c := range d.dead {
		err := s.exec(ctx, `insert into {dead} (id, message_id, slice, lane, topic, msg_key, headers, payload, added, attempts, last_error, died)
			select id, message_id, slice, lane, topic, msg_key, headers, payload, added, cast(? as int), coalesce(?, {empty}), {now}
			from {messages} where id = ? {or_leave id}`, c.attempts, told(c.err), c.id)
		if err != nil {
			return err
		}
		if err := s.exec(ctx, s.dialect.deleteBy(`{messages}`, `id`, []int64{c.id})); err != nil {
			return err
		}
	}
	return nil
}

// goesOn makes a lane due at once.
const goesOn = `why = '` + whyQueued + `', attempts = 0, head = 0, wait_until = {now}`

// relieve lets lanes go on that waited: those with parked messages are due at once,
// and the others are free.
func (s store) relieve(ctx context.Context, _ int, d settlement) error {
	if len(d.relieved) == 0 {
		return nil
	}
	// A replay may be parking a message of such a lane just now: it has locked the
	// lane, and is seen by the statement after this one.
	if _, err := s.lockLanes(ctx, d.relieved); err != nil {
		return err
	}
	if err := s.exec(ctx, s.dialect.deleteBy(`{lanes}`, `lane`, d.relieved)+` and not exists
		(select 1 from {messages} p where p.lane = m.lane and p.parked = true)`); err != nil {
		return err
	}
	return s.exec(ctx, s.dialect.updateBy(`{lanes}`, `lane`, d.relieved, goesOn))
}
