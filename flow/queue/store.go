package queue

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// How much one claim takes at most.
const (
	maxGroups   = 200
	maxArrivals = 500
)

// store is one queue of a table, as a [leasequeue.Store]. Its transactions are READ COMMITTED:
// what a statement reads after it has locked a group is what was committed last.
type store struct {
	db    driver.BeginnerAt[driver.SQL]
	table Table
	name  string

	trimmed atomic.Int64 // when, by the monotonic clock; 0 is never
}

var _ leasequeue.Store = (*store)(nil)

// do runs work in a transaction.
func (s *store) do(ctx context.Context, op string, work func(q tables) error) error {
	return transact.Do(ctx, transact.At(s.db, driver.ReadCommitted), s.name, func(tx driver.Tx[driver.SQL]) error {
		q, err := s.table.open(op, s.name, tx)
		if err != nil {
			return err
		}
		return work(q)
	})
}

// Claim leases groups that are ready; see [leasequeue.Store].
func (s *store) Claim(ctx context.Context, owner string, lease time.Duration, limit driver.QueueLimit) (all []leasequeue.Group, err error) {
	err = s.do(ctx, "receive", func(q tables) error {
		if err := s.trim(ctx, q); err != nil {
			return err
		}
		if err := q.admit(ctx, s.name); err != nil {
			return err
		}
		found, err := q.ready(ctx, s.name, min(limit.Messages, maxGroups))
		if err != nil || len(found) == 0 {
			return err
		}
		all, err = q.claim(ctx, s.name, owner, found, lease, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// How often groups without messages are deleted, how many at once, and for how long they had none.
const (
	trimPause = 5 * time.Minute
	trimRows  = 1000
	trimAge   = time.Hour
)

// trim deletes groups that have had no messages for long. Their next token is still above: it is
// at least the clock, which is set back by less than that.
func (s *store) trim(ctx context.Context, q tables) error {
	last, now := s.trimmed.Load(), int64(boottime.Sent())
	if last != 0 && now-last < int64(trimPause) || !s.trimmed.CompareAndSwap(last, now) {
		return nil
	}
	_, err := q.Delete(ctx, sqltable.Deletion{Table: "groups", Key: "queue, lane", Limit: trimRows,
		Where: `queue = ? and class in (-1, 0, 1) and ready_at = ` + never + ` and state = 0 and token < {micros start} - ?`,
		Args:  []any{s.name, interlock.EpochUnixMicro + trimAge.Microseconds()}})
	return err
}

// admit makes groups ready of which messages have arrived. It waits for no lock of a group:
// arrivals of those that are locked stay. A group that is leased looks for more when it is free.
func (q tables) admit(ctx context.Context, name string) error {
	arrivals, err := sqltable.List(ctx, q.Tables, `select id, lane, class from {arrivals} where queue = ? order by id limit `+strconv.Itoa(maxArrivals)+` for update skip locked`,
		[]any{name}, func(a *arrival) []any { return []any{&a.id, &a.lane, &a.class} })
	if err != nil || len(arrivals) == 0 {
		return err
	}
	class := map[int64]int64{}
	for _, a := range arrivals {
		class[a.lane] = a.class // that of the last one
	}
	var lanes, classes []int64
	for lane := range class {
		lanes = append(lanes, lane)
	}
	slices.Sort(lanes)
	for _, lane := range lanes {
		classes = append(classes, class[lane])
	}
	of, args := q.of(name, lanes)
	known, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {groups} where `+of, args...)
	if err != nil {
		return err
	}
	if err := q.createGroups(ctx, name, lanes, classes, known); err != nil {
		return err
	}
	locked, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {groups} where `+of+` for update skip locked`, args...)
	if err != nil || len(locked) == 0 {
		return err
	}
	if err := q.makeReady(ctx, name, locked, class); err != nil {
		return err
	}
	var done []int64
	for _, a := range arrivals {
		if slices.Contains(locked, a.lane) {
			done = append(done, a.id)
		}
	}
	these, args := q.among("id", done)
	_, err = q.Exec(ctx, `delete from {arrivals} where `+these, args...)
	return err
}

// arrival is a row that says that a group has messages.
type arrival struct{ id, lane, class int64 }

// createGroups creates the groups that are not known.
func (q tables) createGroups(ctx context.Context, name string, lanes, classes, known []int64) error {
	var a, b []int64
	for i, lane := range lanes {
		if !slices.Contains(known, lane) {
			a, b = append(a, lane), append(b, classes[i])
		}
	}
	if len(a) == 0 {
		return nil
	}
	x, args := q.numbered(a, b, make([]int64, len(a)))
	_, err := q.Exec(ctx, `insert into {groups} (queue, lane, state, class, ready_at, token, owner)
		select {pg ?::text}{maria ?}, x.a, 0, x.b, `+never+`, 0, {empty} from `+x+` where true order by x.a {leave {pg queue, lane}{maria lane}}`, append([]any{name}, args...)...)
	return err
}

// makeReady makes groups ready that are neither leased nor parked.
func (q tables) makeReady(ctx context.Context, name string, lanes []int64, class map[int64]int64) error {
	by := map[int64][]int64{}
	for _, lane := range lanes {
		by[class[lane]] = append(by[class[lane]], lane)
	}
	for class, lanes := range by {
		of, args := q.of(name, lanes)
		if _, err := q.Exec(ctx, `update {groups} set class = ?, ready_at = case when state = 0 and ready_at > {micros start} then {micros start} else ready_at end where `+of,
			append([]any{class}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// found is a group that is ready, and locked.
type found struct{ lane, state, next int64 }

// ready locks groups that are ready, by priority and waiting time. Those that others have
// locked are left out.
func (q tables) ready(ctx context.Context, name string, most int) (all []found, err error) {
	var parts []string
	var args []any
	for class := High; class >= Low; class-- {
		parts = append(parts, `(select lane, ready_at - `+strconv.FormatInt(int64(class)*leasequeue.Aging.Microseconds(), 10)+` as due from {groups}
			where queue = ? and class = `+strconv.Itoa(int(class))+` and ready_at <= {micros start} order by ready_at limit `+strconv.Itoa(most)+`)`)
		args = append(args, name)
	}
	lanes, err := sqltable.Column[int64](ctx, q.Tables, `select lane from (`+strings.Join(parts, ` union all `)+`) c order by due limit `+strconv.Itoa(most), args...)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	of, args := q.of(name, lanes)
	return sqltable.List(ctx, q.Tables, `select lane, state, greatest(token + 1, {micros start} - `+strconv.Itoa(interlock.EpochUnixMicro)+`)
		from {groups} where `+of+` and ready_at <= {micros start} for update skip locked`, args, func(f *found) []any { return []any{&f.lane, &f.state, &f.next} })
}

// claim leases locked groups under one token, above all of theirs, and reads their messages. Of
// those that turn out to have nothing to deliver the lease ends at once.
func (q tables) claim(ctx context.Context, name, owner string, groups []found, lease time.Duration, limit driver.QueueLimit) ([]leasequeue.Group, error) {
	var lanes, died []int64
	counter := int64(0)
	for _, g := range groups {
		if lanes = append(lanes, g.lane); g.state == leased {
			died = append(died, g.lane)
		}
		counter = max(counter, g.next)
	}
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return nil, err
	}
	all, err := q.messages(ctx, name, lanes, max(1, min(leasequeue.PerGroup, limit.Messages/len(lanes))))
	if err != nil {
		return nil, err
	}
	if err := q.blame(ctx, all, died); err != nil {
		return nil, err
	}
	var taken []leasequeue.Group
	var use, free []int64
	count, bytes := 0, 0
	for _, g := range groups {
		some := all[g.lane]
		n := 0
		for ; n < len(some) && count < limit.Messages && (count == 0 || bytes+len(some[n].Payload) <= limit.Bytes); n++ {
			count, bytes = count+1, bytes+len(some[n].Payload)
		}
		if n == 0 || g.state&parked != 0 {
			free = append(free, g.lane)
			continue
		}
		use = append(use, g.lane)
		taken = append(taken, leasequeue.Group{ID: g.lane, Token: token, Messages: some[:n]})
	}
	if err := q.free(ctx, name, free); err != nil || len(use) == 0 {
		return nil, err
	}
	of, args := q.of(name, use)
	_, err = q.Exec(ctx, `update {groups} set state = `+strconv.Itoa(leased)+`, token = ?, owner = {?}, ready_at = {micros start} + ? where `+of,
		append([]any{counter, owner, lease.Microseconds()}, args...)...)
	return taken, err
}

// messages reads the first messages of lanes, up to the first that is not to be delivered yet.
func (q tables) messages(ctx context.Context, name string, lanes []int64, each int) (map[int64][]driver.Received, error) {
	const fields = `m.lane, m.id, m.message_id, m.msg_key, m.headers, m.payload, m.attempts, m.added, m.class, m.not_before - {micros start}`
	query := `select ` + fields + ` from unnest(?::text::bigint[]) as x (lane) cross join lateral (
		select * from {messages} o where o.queue = ? and o.lane = x.lane order by o.id limit ` + strconv.Itoa(each) + `) m order by m.id`
	args := []any{sqltable.Numbers(lanes), name}
	if q.Maria() {
		var parts []string
		args = nil
		for _, lane := range lanes {
			parts = append(parts, `(select * from {messages} where queue = ? and lane = `+strconv.FormatInt(lane, 10)+` order by id limit `+strconv.Itoa(each)+`)`)
			args = append(args, name)
		}
		query = `select ` + fields + ` from (` + strings.Join(parts, ` union all `) + `) m order by m.id`
	}
	all, waits := map[int64][]driver.Received{}, map[int64]bool{}
	err := q.Each(ctx, query, args, func(scan func(...any) error) error {
		var m driver.Received
		var headers string
		var lane, added, early int64
		var class int
		if err := scan(&lane, &m.Place, &m.ID, &m.Key, &headers, &m.Payload, &m.Attempt, &added, &class, &early); err != nil {
			return err
		}
		if waits[lane] = waits[lane] || early > 0; waits[lane] {
			return nil
		}
		m.Attempt++
		m.Added, m.Priority = time.UnixMicro(added).UTC(), Priority(class)
		var err error
		m.Headers, err = decode(headers)
		all[lane] = append(all[lane], m)
		return err
	})
	return all, err
}

// decode is the headers as they were added.
func decode(headers string) (m map[string]string, err error) {
	if headers != "" {
		err = json.Unmarshal([]byte(headers), &m)
	}
	return m, err
}

// blame counts an attempt of the first message of each group whose consumer died.
func (q tables) blame(ctx context.Context, all map[int64][]driver.Received, died []int64) error {
	var places []int64
	for _, lane := range died {
		if len(all[lane]) > 0 {
			all[lane][0].Attempt++
			places = append(places, all[lane][0].Place)
		}
	}
	if len(places) == 0 {
		return nil
	}
	these, args := q.among("id", places)
	_, err := q.Exec(ctx, `update {messages} set attempts = attempts + 1 where `+these, args...)
	return err
}

// free ends leases: groups become ready when their first message is, or never.
func (q tables) free(ctx context.Context, name string, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
	}
	of, args := q.of(name, lanes)
	if _, err := q.Exec(ctx, `update {groups} g set ready_at = case when state >= `+strconv.Itoa(parked)+` then `+never+` else coalesce((
			select greatest(m.not_before, {micros start}) from {messages} m where m.queue = g.queue and m.lane = g.lane order by m.id limit 1), `+never+`) end,
		state = case when state >= `+strconv.Itoa(parked)+` then `+strconv.Itoa(parked)+` else 0 end, owner = {empty} where `+of, args...); err != nil {
		return err
	}
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(lane int64) bool { return lane >= 0 })
	if len(lanes) == 0 {
		return nil
	}
	of, args = q.of(name, lanes)
	_, err := q.Exec(ctx, `delete from {groups} where `+of+` and state = 0 and ready_at = `+never, args...)
	return err
}
