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

// Bounds of one claim.
const (
	maxGroups   = 500
	minGroups   = 64 // even if each has many messages, so that as many handlers can run
	maxArrivals = 1000

	mostArrivals = 8 * maxArrivals // if few of them change a group
)

// store is one queue of a table, as a [leasequeue.Store]. Its transactions are READ COMMITTED: after
// a statement has locked a group, it reads what was committed last.
type store struct {
	db    driver.BeginnerAt[driver.SQL]
	table Table
	name  string

	trimmed  atomic.Int64 // last time, by the monotonic clock; 0 means never
	busy     atomic.Bool  // the last claim found something
	depth    depth
	arrivals arrivals
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

// single runs work of one statement; if db is a [driver.Autocommitter] (PostgreSQL), in one request.
func (s *store) single(ctx context.Context, op string, work func(q tables) error) error {
	db, ok := s.db.(driver.Autocommitter)
	if !ok {
		return s.do(ctx, op, work)
	}
	q, err := s.table.open(op, s.name, db.Autocommit(driver.ReadCommitted))
	if err == nil {
		err = work(q)
	}
	return err
}

// Claim leases groups that are ready; see [leasequeue.Store]. If the last call found nothing, it
// first looks, in one statement.
func (s *store) Claim(ctx context.Context, owner string, lease time.Duration, limit driver.QueueLimit) (all []leasequeue.Group, wait time.Duration, err error) {
	if err := s.trim(ctx); err != nil {
		return nil, 0, err
	}
	if !s.busy.Load() {
		if some, wait, err := s.look(ctx); err != nil || !some {
			return nil, wait, err
		}
	}
	err = s.do(ctx, "receive", func(q tables) error {
		if err := q.admit(ctx, s.name, &s.arrivals); err != nil {
			return err
		}
		found, err := q.lease(ctx, s.name, owner, s.depth.groups(limit.Messages), lease)
		if err != nil || len(found) == 0 {
			return err
		}
		each := max(1, min(leasequeue.PerGroup, limit.Messages/len(found)))
		all, err = q.fetch(ctx, s.name, found, each, limit, s.depth.fits(limit))
		s.depth.learn(all, each)
		return err
	})
	s.busy.Store(err == nil && len(all) > 0)
	if err != nil {
		return nil, 0, err
	}
	return all, 0, nil
}

// look reports whether a group may be ready, and the time until the next one is ready, if known.
func (s *store) look(ctx context.Context) (some bool, wait time.Duration, err error) {
	err = s.single(ctx, "receive", func(q tables) error {
		var next []string
		var args []any
		for class := Low; class <= High; class++ {
			next = append(next, `coalesce((select min(ready_at) from {groups} where queue = ? and class = `+strconv.Itoa(int(class))+`), `+never+`)`)
			args = append(args, s.name)
		}
		var arrived, ready int64
		_, err := q.Row(ctx, `select (select count(*) from (select 1 from {arrivals} where queue = ? limit 1) a), least(`+strings.Join(next, `, `)+`) - {micros start}`,
			append([]any{s.name}, args...), &arrived, &ready)
		some, wait = arrived > 0 || ready <= 0, time.Duration(min(max(ready, 0), maxDelay.Microseconds()))*time.Microsecond
		return err
	})
	return some, wait, err
}

// How often groups without messages are deleted, how many at once, how long they were empty
// before, and how long audit records are kept.
const (
	trimPause = 5 * time.Minute
	trimRows  = 1000
	trimAge   = time.Hour
	keepAudit = 90 * 24 * time.Hour
)

// trim deletes groups that have had no messages for trimAge, and old audit records. The next token
// of a deleted group is still higher: it is at least the clock, if that is set back by less.
func (s *store) trim(ctx context.Context) error {
	last, now := s.trimmed.Load(), int64(boottime.Sent())
	if last != 0 && now-last < int64(trimPause) || !s.trimmed.CompareAndSwap(last, now) {
		return nil
	}
	return s.do(ctx, "receive", func(q tables) error {
		_, err := q.Delete(ctx, sqltable.Deletion{Table: "groups", Key: "queue, lane", Limit: trimRows,
			Where: `queue = ? and class in (-1, 0, 1) and ready_at = ` + never + ` and state = 0 and token < {micros start} - ?`,
			Args:  []any{s.name, interlock.EpochUnixMicro + trimAge.Microseconds()}})
		if err == nil {
			_, err = q.Delete(ctx, sqltable.Deletion{Table: "audit", Key: "id", Limit: trimRows,
				Where: `done_at < {micros start} - ?`, Args: []any{keepAudit.Microseconds()}})
		}
		return err
	})
}

// arrivals is how many arrivals the next claim admits on PostgreSQL; at most maxArrivals mean that many.
// It locks the group of each, so those of groups that are ready anyway are admitted together.
type arrivals struct{ next atomic.Int64 }

func (a *arrivals) most() int64 { return max(a.next.Load(), maxArrivals) }

// learn records how many arrivals a claim admitted, and how many groups these changed.
func (a *arrivals) learn(arrived, changed int64) {
	a.next.Store(min(maxArrivals*arrived/max(changed, 1), mostArrivals))
}

// depth is the recent number of messages in a group. It decides between many groups with few
// messages and few groups with many.
type depth struct {
	atomic.Int64
	size atomic.Int64 // bytes of a recent message, plus one; 0 if there was none
}

// fits reports whether so many messages as recent ones are far below the limit of bytes.
func (d *depth) fits(limit driver.QueueLimit) bool {
	size := d.size.Load()
	return size > 0 && size*int64(limit.Messages) < int64(limit.Bytes)/4
}

// groups returns how many groups to lease for a number of messages.
func (d *depth) groups(messages int) int {
	return min(messages, maxGroups, max(minGroups, messages/int(max(1, d.Load()))))
}

// learn records the result of a claim. If the groups had as many messages as requested, apart from a
// few, there may be more.
func (d *depth) learn(all []leasequeue.Group, each int) {
	if len(all) == 0 {
		return
	}
	count, bytes := 0, 0
	for _, g := range all {
		count += len(g.Messages)
		for _, m := range g.Messages {
			bytes += len(m.Payload)
		}
	}
	d.size.Store(int64(bytes/count + 1))
	if 8*count >= 7*each*len(all) {
		d.Store(max(d.Load(), int64(2*each)))
	} else {
		d.Store(int64(count / len(all)))
	}
}

// found is a group that this claim leased. state and since, its ready_at, are those before.
type found struct{ lane, state, token, due, since int64 }

// fetch reads the messages of leased groups. It ends the leases of groups that have no message to
// deliver within the limit; those that are ready keep their rank.
func (q tables) fetch(ctx context.Context, name string, groups []found, each int, limit driver.QueueLimit, fits bool) (taken []leasequeue.Group, err error) {
	var lanes, died, free []int64
	var over []found
	for _, g := range groups {
		lanes = append(lanes, g.lane)
	}
	all, beyond, err := q.messages(ctx, name, lanes, each, limit.Bytes, fits)
	if err != nil {
		return nil, err
	}
	count, bytes := 0, 0
	for _, g := range groups {
		some, n := all[g.lane], 0
		for ; n < len(some) && count < limit.Messages && (count == 0 || bytes+len(some[n].Payload) <= limit.Bytes); n++ {
			count, bytes = count+1, bytes+len(some[n].Payload)
		}
		switch {
		case g.state&parked != 0 || n == 0 && len(some) == 0 && !beyond[g.lane]:
			free = append(free, g.lane)
			continue
		case n == 0:
			over = append(over, g)
			continue
		case g.state&leased != 0:
			died = append(died, g.lane)
		}
		token, err := interlock.NewToken(g.token, 0)
		if err != nil {
			return nil, err
		}
		taken = append(taken, leasequeue.Group{ID: g.lane, Token: token, Messages: some[:n]})
	}
	if err := q.blame(ctx, all, died); err != nil {
		return nil, err
	}
	if err := q.putBack(ctx, name, over); err != nil {
		return nil, err
	}
	return taken, q.free(ctx, name, free)
}

// putBack undoes leases of groups, apart from their tokens.
func (q tables) putBack(ctx context.Context, name string, groups []found) error {
	if len(groups) == 0 {
		return nil
	}
	var lanes, since, states []int64
	for _, g := range groups {
		lanes, since, states = append(lanes, g.lane), append(since, g.since), append(states, g.state)
	}
	x, args := q.numbered(lanes, since, states)
	_, err := q.Exec(ctx, `update {groups} g {maria join `+x+` on g.lane = x.a} set state = x.c, owner = {empty}, ready_at = x.b {pg from `+x+`}
		where g.queue = ? {pg and g.lane = x.a}`, append(args, name)...)
	return err
}

// messages reads the first messages of lanes, up to the first that is delayed. Unless all are expected to
// fit, those after many bytes of payload are not read; the result says of which lanes there are any.
func (q tables) messages(ctx context.Context, name string, lanes []int64, each, bytes int, fits bool) (all map[int64][]driver.Received, beyond map[int64]bool, err error) {
	const fields = `m.lane, m.id, m.message_id, m.msg_key, m.headers, case when m.earlier < ? then m.payload end, m.attempts, m.added, m.class, m.not_before - {micros start}`
	earlier := `, {pg 0::bigint}{maria 0} as earlier `
	if !fits { // the sum makes the query half as slow again
		earlier = `, sum(octet_length(payload)) over (order by n, id rows unbounded preceding) - octet_length(payload) as earlier `
	}
	query := `select ` + fields + ` from (select m.*, n` + earlier + `from unnest(?::text::bigint[]) with ordinality as x (lane, n) cross join lateral (
		select * from {messages} o where o.queue = ? and o.lane = x.lane order by o.id limit (select ?::bigint)) m) m order by m.n, m.id`
	args := []any{bytes, sqltable.Numbers(lanes), name, each}
	if q.Maria() {
		var parts []string
		args = args[:1]
		for n, lane := range lanes {
			parts = append(parts, `(select *, `+strconv.Itoa(n)+` as n from {messages} where queue = ? and lane = `+strconv.FormatInt(lane, 10)+` order by id limit `+strconv.Itoa(each)+`)`)
			args = append(args, name)
		}
		query = `select ` + fields + ` from (select m.*` + earlier + `from (` + strings.Join(parts, ` union all `) + `) m) m order by m.n, m.id`
	}
	all, beyond = map[int64][]driver.Received{}, map[int64]bool{}
	waits := map[int64]bool{}
	err = q.Each(ctx, query, args, func(scan func(...any) error) error {
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
		if beyond[lane] = beyond[lane] || m.Payload == nil; beyond[lane] {
			return nil
		}
		m.Attempt++
		m.Added, m.Priority = time.UnixMicro(added).UTC(), Priority(class)
		var err error
		m.Headers, err = decode(headers)
		all[lane] = append(all[lane], m)
		return err
	})
	return all, beyond, err
}

// decode parses stored headers.
func decode(headers string) (m map[string]string, err error) {
	if headers != "" {
		err = json.Unmarshal([]byte(headers), &m)
	}
	return m, err
}

// blame counts an attempt for the first message of each group whose consumer died.
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

// free ends leases: a group is ready when its first message is, or never.
func (q tables) free(ctx context.Context, name string, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
	}
	of, args := q.of(name, lanes)
	if _, err := q.Exec(ctx, `update {groups} g set ready_at = case when state & 2 = 2 then `+never+` else coalesce((
			select greatest(m.not_before, {micros start}) from {messages} m where m.queue = g.queue and m.lane = g.lane order by m.id limit 1), `+never+`) end,
		state = state & 2, owner = {empty} where `+of, args...); err != nil {
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
