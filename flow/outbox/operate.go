package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// An OrderError tells that a dead letter cannot be replayed before another of its
// key, which was added earlier: replay both, or discard that one first. It is
// Definite.
type OrderError struct{ ID, Earlier string }

// Error names both.
func (e *OrderError) Error() string {
	return fmt.Sprintf("dead letter %q cannot be replayed before %q, which is an earlier one of its key", e.ID, e.Earlier)
}

// ErrorKind is [interlock.Definite].
func (e *OrderError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Replay makes undelivered messages of dead letters again, all or none, with the ids
// that they had, and records for each who did it and why; neither may be blank.
// They go in the order in which they were added, before all messages of their key
// that no relay has taken to the sink yet, also if the call names them otherwise.
// One that does not exist is a [*NotFoundError], one that has an earlier one of its
// key before it among the dead letters an [*OrderError], and one whose id is that of
// an undelivered message a [*DuplicateError]; then, as after any error, the
// transaction must be rolled back.
func (t Table) Replay(ctx context.Context, db driver.SQL, ids []string, reason, by string) error {
	const op = "replay dead letters"
	s, letters, err := t.take(ctx, db, op, ids, reason, by)
	if err != nil || len(letters) == 0 {
		return err
	}
	if err := s.inOrder(ctx, letters); err != nil {
		return s.failed(err)
	}
	l, err := s.layout(ctx, `{share}`)
	if err != nil {
		return err
	}
	lanes, rows := sortedLanes(letters), ids64(letters)
	waiting, err := s.lockLanes(ctx, lanes)
	if err != nil {
		return s.failed(err)
	}
	parked := `false`
	if len(waiting) > 0 {
		parked = `case when lane in (` + list(waiting) + `) then true else false end`
	}
	if err := s.exec(ctx, `insert into {messages} (id, message_id, slice, lane, parked, topic, msg_key, headers, payload, not_before, added)
		select id, message_id, `+sliceOf(strconv.Itoa(l.Slices))+`, lane, `+parked+`, topic, msg_key, headers, payload, 0, added
		from {dead} where id in (`+list(rows)+`) {leave message_id}`); err != nil {
		return s.failed(err)
	}
	stored := 0
	err = s.Each(ctx, `select count(*) from {messages} where id in (`+list(rows)+`)`, nil, func(scan func(...any) error) error { return scan(&stored) })
	if err != nil {
		return s.failed(err)
	}
	if stored != len(rows) {
		return &DuplicateError{Table: t.name()}
	}
	if err := s.goOnFrom(ctx, WhyDelayed, lanes); err != nil {
		return s.failed(err)
	}
	return s.failed(s.leaveDead(ctx, rows, lanes))
}

// Discard deletes dead letters for good, all or none, and records for each who did
// it and why; neither may be blank. One that does not exist is a [*NotFoundError].
func (t Table) Discard(ctx context.Context, db driver.SQL, ids []string, reason, by string) error {
	const op = "discard dead letters"
	s, letters, err := t.take(ctx, db, op, ids, reason, by)
	if err != nil || len(letters) == 0 {
		return err
	}
	lanes := sortedLanes(letters)
	if _, err := s.lockLanes(ctx, lanes); err != nil {
		return s.failed(err)
	}
	return s.failed(s.leaveDead(ctx, ids64(letters), lanes))
}

// MakeDeadLetter makes a dead letter of a message that is not delivered yet, such as the one
// that blocks its key, and records who did it and why; neither may be blank. What
// comes after it goes on. If a relay is about to deliver it, that may happen all the
// same. One that does not exist is a [*NotFoundError].
func (t Table) MakeDeadLetter(ctx context.Context, db driver.SQL, id, reason, by string) error {
	const op = "bury message"
	s, err := t.answered(op, db, reason, by)
	if err != nil {
		return err
	}
	c, err := s.undelivered(ctx, id)
	switch {
	case err != nil:
		return s.failed(err)
	case c.id == 0:
		return s.notFound("undelivered message", id)
	case c.head != c.id:
		c.attempts = 0
	}
	c.err = fmt.Errorf("buried by %s: %s", by, reason)
	if err := s.bury(ctx, 0, settlement{dead: []change{c}}); err != nil {
		return s.failed(err)
	}
	if err := s.record(ctx, op, []int64{c.id}, reason, by); err != nil {
		return s.failed(err)
	}
	if c.head != c.id {
		return nil
	}
	return s.failed(s.relieve(ctx, 0, settlement{relieved: []int64{c.lane}}))
}

// undelivered locks a message and its lane, in the order in which everybody does: the
// lane is only known when the message was read, and the message may be gone when the
// lane is locked. Its id is 0 if it is.
func (s store) undelivered(ctx context.Context, id string) (c change, err error) {
	if err := s.Each(ctx, `select lane from {messages} where message_id = ?`, []any{id},
		func(scan func(...any) error) error { return scan(&c.lane) }); err != nil {
		return c, err
	}
	if err := s.Each(ctx, `select attempts, head from {lanes} where lane = ? for update`, []any{c.lane},
		func(scan func(...any) error) error { return scan(&c.attempts, &c.head) }); err != nil {
		return c, err
	}
	return c, s.Each(ctx, `select id from {messages} where message_id = ? and lane = ? for update`, []any{id, c.lane},
		func(scan func(...any) error) error { return scan(&c.id) })
}

// Retry lets the message that its key waits for be tried at once, by its id. One that
// nothing waits for is a [*NotFoundError].
func (t Table) Retry(ctx context.Context, db driver.SQL, id string) error {
	const op = "retry message"
	s, err := t.open(op, db)
	if err != nil {
		return err
	}
	// The lane is found without locks, since InnoDB would lock all that it passes.
	var lane int64
	found := false
	const which = ` message_id = ? and why in ('` + WhyRetry + `', '` + WhyBlocked + `')`
	see := func(scan func(...any) error) error { found = true; return scan(&lane) }
	err = s.Each(ctx, `select lane from {lanes} where`+which, []any{id}, see)
	if err == nil && found {
		found = false
		err = s.Each(ctx, `select lane from {lanes} where lane = ? and`+which+` for update`, []any{lane, id}, see)
	}
	switch {
	case err != nil:
		return s.failed(err)
	case !found:
		return s.notFound("waiting message", id)
	}
	return s.failed(s.exec(ctx, `update {lanes} set wait_until = {micros start} where lane = ?`, lane))
}

// answered opens t for somebody who answers for what is done.
func (t Table) answered(op string, db driver.SQL, reason, by string) (store, error) {
	if err := answerable(op, t, reason, by); err != nil {
		return store{}, err
	}
	return t.open(op, db)
}

// answerable refuses what is done without a reason, or by nobody.
func answerable(op string, t Table, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return failure.Bug(op, t.name(), "a reason is required")
	case strings.TrimSpace(by) == "":
		return failure.Bug(op, t.name(), "it must be said who does it")
	}
	return nil
}

// take locks dead letters and records what is done with them.
func (t Table) take(ctx context.Context, db driver.SQL, op string, ids []string, reason, by string) (store, []row, error) {
	s, err := t.answered(op, db, reason, by)
	if err != nil || len(ids) == 0 {
		return s, nil, err
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	letters, err := s.dead(ctx, `message_id in (`+strings.TrimSuffix(strings.Repeat("?,", len(ids)), ",")+`)`, args...)
	if err != nil {
		return s, nil, s.failed(err)
	}
	named := map[string]bool{}
	letters = slices.DeleteFunc(letters, func(l row) bool { // all but the oldest of each id
		defer func() { named[l.ID] = true }()
		return named[l.ID]
	})
	for _, id := range ids {
		if !slices.ContainsFunc(letters, func(l row) bool { return l.ID == id }) {
			return s, nil, s.notFound("dead letter", id)
		}
	}
	return s, letters, s.failed(s.record(ctx, op, ids64(letters), reason, by))
}

// dead locks dead letters, in order of their ids.
func (s store) dead(ctx context.Context, which string, args ...any) (letters []row, err error) {
	return sqltable.List(ctx, s.Tables, `select id, message_id, lane, msg_key from {dead} where `+which+` order by id for update`, args,
		func(r *row) []any { return []any{&r.id, &r.ID, &r.lane, &r.Key} })
}

// inOrder refuses to replay a letter while an earlier one of its key stays dead.
func (s store) inOrder(ctx context.Context, letters []row) error {
	all, err := s.dead(ctx, `lane in (`+list(sortedLanes(letters))+`)`)
	if err != nil {
		return err
	}
	stays := map[int64]string{}
	for _, l := range all {
		chosen := slices.ContainsFunc(letters, func(c row) bool { return c.id == l.id })
		earlier, found := stays[l.lane]
		switch {
		case chosen && found:
			return &OrderError{ID: l.ID, Earlier: earlier}
		case !chosen && !found:
			stays[l.lane] = l.ID
		}
	}
	return nil
}

// lockLanes locks those of the lanes that wait.
func (s store) lockLanes(ctx context.Context, lanes []int64) (waiting []int64, err error) {
	return sqltable.Column[int64](ctx, s.Tables, s.lockBy(`{lanes}`, `lane`, lanes))
}

// leaveDead deletes letters, and lets lanes go on that wait for no other one. The
// lanes are locked.
func (s store) leaveDead(ctx context.Context, rows, lanes []int64) error {
	if err := s.exec(ctx, s.deleteBy(`{dead}`, `id`, rows)); err != nil {
		return err
	}
	left, err := s.dead(ctx, `lane in (`+list(lanes)+`)`)
	if err != nil {
		return err
	}
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(lane int64) bool {
		return slices.ContainsFunc(left, func(l row) bool { return l.lane == lane })
	})
	return s.goOnFrom(ctx, WhyDead, lanes)
}

// goOnFrom makes those of the lanes due at once that wait for that reason.
func (s store) goOnFrom(ctx context.Context, why string, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
	}
	held, err := sqltable.Column[int64](ctx, s.Tables, `select lane from {lanes} where why = '`+why+`' and lane in (`+list(lanes)+`) for update`)
	if err != nil {
		return err
	}
	return s.goOn(ctx, held)
}

// record keeps what was done by hand with letters.
func (s store) record(ctx context.Context, op string, rows []int64, reason, by string) error {
	action, _, _ := strings.Cut(op, " ")
	return s.exec(ctx, `insert into {audit} (action, message_id, topic, msg_key, reason, done_by, done_at)
		select '`+action+`', message_id, topic, msg_key, ?, ?, {micros start} from {dead} where id in (`+list(rows)+`) order by id`, label(reason), label(by))
}

func sortedLanes(rows []row) (lanes []int64) {
	for _, r := range rows {
		lanes = append(lanes, r.lane)
	}
	slices.SortFunc(lanes, cmp.Compare[int64])
	return slices.Compact(lanes)
}

func ids64(rows []row) (ids []int64) {
	for _, r := range rows {
		ids = append(ids, r.id)
	}
	return ids
}
