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
	rows []row   // in order of their ids
	each int     // limit of parked rows of a lane
	idle []int64 // lanes that are due and have no messages
}

// read reads the messages to send of a slice, without those under way and without due lanes that have
// messages under way. It keeps no cursor: messages of a transaction that commits late are found after
// its commit, whatever their ids are.
func (s store) read(ctx context.Context, slice, limit int, underway []row) (picture, error) {
	lanes, err := s.due(ctx, slice, min(limit, dueLanes), underway)
	if err != nil {
		return picture{}, s.failed(err)
	}
	var p picture
	if len(lanes) > 0 {
		p.each = min(limit/len(lanes), laneRows)
		if p.rows, err = s.rows(ctx, parkedOf(lanes, p.each), nil, lanes); err != nil {
			return picture{}, s.failed(err)
		}
	}
	for _, l := range lanes {
		if !slices.ContainsFunc(p.rows, func(r row) bool { return r.lane == l.lane }) {
			p.idle = append(p.idle, l.lane)
		}
	}
	query, args := s.ready(slice, limit, ids64(underway))
	ready, err := s.rows(ctx, query, args, nil)
	p.rows = append(p.rows, ready...)
	slices.SortFunc(p.rows, func(a, b row) int { return cmp.Compare(a.id, b.id) })
	return p, s.failed(err)
}

// A dueLane is a lane whose wait has ended.
type dueLane struct {
	lane     int64
	attempts int
	head     int64 // 0 if the message does not exist any more
}

// due returns the lanes whose wait has ended, the earliest first.
func (s store) due(ctx context.Context, slice, most int, underway []row) (lanes []dueLane, err error) {
	but := ""
	if len(underway) > 0 {
		but = ` and l.lane not in (` + list(sortedLanes(underway)) + `)`
	}
	return sqltable.List(ctx, s.Tables, `select l.lane, l.attempts, coalesce(h.id, 0) from {lanes} l left join {messages} h on h.id = l.head
		where l.slice = ? and {due}`+but+` order by l.wait_until limit `+strconv.Itoa(most), []any{slice},
		func(l *dueLane) []any { return []any{&l.lane, &l.attempts, &l.head} })
}

// parkedOf selects the oldest parked messages of lanes; of a lane with a failed message, none after
// that message.
func parkedOf(lanes []dueLane, each int) string {
	var parts []string
	for _, l := range lanes {
		where := ` where o.parked = true and o.lane = ` + strconv.FormatInt(l.lane, 10)
		if l.attempts > 0 && l.head > 0 {
			where += ` and o.id <= ` + strconv.FormatInt(l.head, 10)
		}
		parts = append(parts, `(select `+columns+`, o.payload, 1, 0, 0 from {messages} o`+where+` order by o.id limit `+strconv.Itoa(each)+`)`)
	}
	return strings.Join(parts, ` union all `)
}

// columns of a row. The payload, the standing of the lane, the failures of the message at its head
// and its id follow. Payloads of rows to park are not read.
const (
	columns = `o.id, o.message_id, o.topic, o.msg_key, o.headers, o.lane,
		case when o.not_before = 0 then 0 else o.not_before - {micros start} end, {micros start} - o.added`
	readyColumns = `select ` + columns + `, case when l.lane is null or {due} then o.payload end,
		case when l.lane is null then 0 when {due} then 1 else 2 end, coalesce(l.attempts, 0), coalesce(l.head, 0)`
)

// rows returns the rows of a query: parked ones of lanes, or others if lanes is nil.
func (s store) rows(ctx context.Context, query string, args []any, lanes []dueLane) (found []row, err error) {
	err = s.Each(ctx, query, args, func(scan func(...any) error) error {
		r := row{parked: lanes != nil}
		var headers string
		var early, age, lists int64
		if err := scan(&r.id, &r.ID, &r.Topic, &r.Key, &headers, &r.lane, &early, &age, &r.Payload, &lists, &r.attempts, &r.head); err != nil {
			return err
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
