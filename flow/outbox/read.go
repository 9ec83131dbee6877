package outbox

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Bounds of one read of due lanes, and never more than the limit of other rows.
const (
	dueLanes = 20  // lanes
	laneRows = 100 // messages of each
)

// A picture is the result of a read.
type picture struct {
	rows   []row   // in order of their ids
	each   int     // limit of parked rows of a lane
	idle   []int64 // lanes that are due and have no messages
	layout Layout  // when the rows that are not parked were read
}

// read reads the messages to send of a slice, without those under way and without due lanes that have
// messages under way. It keeps no cursor: messages of a transaction that commits late are found after
// its commit, whatever their ids are.
func (s store) read(ctx context.Context, slice, limit int, underway []row) (picture, error) {
	p, due, err := s.ready(ctx, slice, limit, underway)
	if err != nil || !due {
		return p, s.failed(err)
	}
	// Which rows are ready is read once more, after the lanes: a lane may have begun to wait.
	lanes, err := s.due(ctx, slice, min(limit, dueLanes), underway)
	if err != nil {
		return picture{}, s.failed(err)
	}
	p = picture{}
	if len(lanes) > 0 {
		p.each = min(limit/len(lanes), laneRows)
		if p.rows, err = s.rows(ctx, s.parkedOf(lanes, p.each), nil, lanes); err != nil {
			return picture{}, s.failed(err)
		}
	}
	for _, l := range lanes {
		if !slices.ContainsFunc(p.rows, func(r row) bool { return r.lane == l.lane }) {
			p.idle = append(p.idle, l.lane)
		}
	}
	ready, _, err := s.ready(ctx, slice, limit, underway)
	p.rows, p.layout = append(p.rows, ready.rows...), ready.layout
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Compare(a.id, b.id) })
	return p, s.failed(err)
}

// ready reads the rows that are not parked, the layout, and whether a lane is due, by one statement.
// Texts are '{}' where there are none, because a MariaDB may read empty ones as NULL.
func (s store) ready(ctx context.Context, slice, limit int, underway []row) (p picture, due bool, err error) {
	messages, args := s.readyMessages(slice, limit, ids64(underway))
	clauses, more := s.dueLanes(slice, underway)
	found, err := s.rows(ctx, `(`+messages+`)
		union all select -1, '{}', '{}', '{}', '{}', one, slices, 0, null, 0, 0, 0 from {layout} where one in (1, 2)
		union all (select 0, '{}', '{}', '{}', '{}', 0, 0, 0, null, 0, 0, 0`+clauses+` limit 1)`, append(args, more...), nil)
	for _, r := range found {
		switch r.id {
		case 0:
			due = true
		case -1:
			p.layout.set(int(r.lane), int(r.early.Microseconds()))
		default:
			p.rows = append(p.rows, r)
		}
	}
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Compare(a.id, b.id) })
	return p, due, err
}

// A dueLane is a lane whose wait has ended.
type dueLane struct {
	lane     int64
	attempts int
	head     int64 // 0 if the message does not exist any more
}

// due returns the lanes whose wait has ended, the earliest first.
func (s store) due(ctx context.Context, slice, most int, underway []row) (lanes []dueLane, err error) {
	clauses, args := s.dueLanes(slice, underway)
	return sqltable.List(ctx, s.Tables, `select l.lane, l.attempts, coalesce((select h.id from {messages} h where h.id = l.head), 0)`+
		clauses+` order by l.wait_until`+s.most(most), args,
		func(l *dueLane) []any { return []any{&l.lane, &l.attempts, &l.head} })
}

// dueLanes returns the clauses for the lanes l whose wait has ended, without those of messages under way.
func (s store) dueLanes(slice int, underway []row) (clauses string, args []any) {
	but, args := s.without(`l.lane`, sortedLanes(underway))
	return ` from {lanes} l where l.slice = ? and l.wait_until <= {micros start}` + but, append([]any{slice}, args...)
}

// parkedOf selects the oldest parked messages of lanes; of a lane with a failed message, none after
// that message.
func (s store) parkedOf(lanes []dueLane, each int) string {
	var parts []string
	for _, l := range lanes {
		where := ` where o.parked = true and o.lane = ` + strconv.FormatInt(l.lane, 10)
		if l.attempts > 0 && l.head > 0 {
			where += ` and o.id <= ` + strconv.FormatInt(l.head, 10)
		}
		parts = append(parts, `(select `+columns+`, o.payload, 1, 0, 0 from {messages} o`+where+` order by o.id`+s.most(each)+`)`)
	}
	return strings.Join(parts, ` union all `)
}

// columns of a row. The payload, the standing of the lane, the failures of the message at its head
// and its id follow. Payloads of rows to park are not read.
const (
	columns = `o.id, o.message_id, o.topic, o.msg_key, o.headers, o.lane,
		case when o.not_before = 0 then 0 else o.not_before - {micros start} end, {micros start} - o.added`
	readyColumns = `select ` + columns + `, case when l.lane is null or l.wait_until <= {micros start} then o.payload end,
		case when l.lane is null then 0 when l.wait_until <= {micros start} then 1 else 2 end, coalesce(l.attempts, 0), coalesce(l.head, 0)`
)

// rows returns the rows of a query: parked ones of lanes, or others if lanes is nil. It keeps the payloads of one batch.
func (s store) rows(ctx context.Context, query string, args []any, lanes []dueLane) (found []row, err error) {
	size := 0
	err = s.Each(ctx, query, args, func(scan func(...any) error) error {
		r := row{parked: lanes != nil}
		var headers string
		var early, age, lists int64
		if err := scan(&r.id, &r.ID, &r.Topic, &r.Key, &headers, &r.lane, &early, &age, &r.Payload, &lists, &r.attempts, &r.head); err != nil {
			return err
		}
		if size += len(r.Payload); size > maxBatchBytes {
			r.Payload, r.cut = nil, true
		}
		var err error
		r.Headers, err = decoded(headers)
		r.early, r.age, r.lists = micros(early), max(0, micros(age)), standing(lists)
		if i := slices.IndexFunc(lanes, func(l dueLane) bool { return l.lane == r.lane }); i >= 0 {
			r.attempts, r.head = lanes[i].attempts, lanes[i].head
		}
		found = append(found, r)
		return err
	})
	return found, err
}

func micros(n int64) time.Duration {
	return time.Duration(min(n, int64(forever/time.Microsecond))) * time.Microsecond
}
