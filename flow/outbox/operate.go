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

// An OrderError means that a dead letter cannot be replayed because an earlier message of its key is
// a dead letter too. Replay both, or discard the earlier one first. It is Definite.
type OrderError struct{ ID, Earlier string }

// Error returns a message with both ids.
func (e *OrderError) Error() string {
	return fmt.Sprintf("dead letter %q cannot be replayed before %q, an earlier one of its key; replay both", e.ID, e.Earlier)
}

// ErrorKind returns [interlock.Definite].
func (e *OrderError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Replay delivers dead letters again, all or none, under their ids. The audit records reason and by,
// which may not be blank. They are delivered in the order of their addition, whatever the order of
// ids. They precede all messages of their key that no relay has passed to the sink yet.
//
// Errors, after which the transaction must be rolled back:
//   - a [*NotFoundError] if a dead letter does not exist
//   - an [*OrderError] if an earlier message of a key remains a dead letter
//   - a [*DuplicateError] if an undelivered message has the same id
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
	if _, err := s.Row(ctx, `select count(*) from {messages} where id in (`+list(rows)+`)`, nil, &stored); err != nil {
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

// Discard deletes dead letters, all or none. The audit records reason and by, which may not be blank.
// If one does not exist, the error is a [*NotFoundError].
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

// MakeDeadLetter makes a dead letter of an undelivered message, such as one that blocks its key;
// later messages of the key continue. The audit records reason and by, which may not be blank. A
// relay that is about to deliver the message may still do so. If there is no such message, the error
// is a [*NotFoundError].
func (t Table) MakeDeadLetter(ctx context.Context, db driver.SQL, id, reason, by string) error {
	const op = "bury message"
	s, err := t.openFor(op, db, reason, by)
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

// undelivered locks the lane of a message and then the message, in the order of all transactions. It
// reads the message first to find the lane. If the message is gone when the lane is locked, the id is
// 0.
func (s store) undelivered(ctx context.Context, id string) (c change, err error) {
	_, err = s.Row(ctx, `select lane from {messages} where message_id = ?`, []any{id}, &c.lane)
	if err == nil {
		_, err = s.Row(ctx, `select attempts, head from {lanes} where lane = ? for update`, []any{c.lane}, &c.attempts, &c.head)
	}
	if err == nil {
		_, err = s.Row(ctx, `select id from {messages} where message_id = ? and lane = ? for update`, []any{id, c.lane}, &c.id)
	}
	return c, err
}

// Retry retries the message that a key waits for at once. If no key waits for it, the error is a
// [*NotFoundError].
func (t Table) Retry(ctx context.Context, db driver.SQL, id string) error {
	const op = "retry message"
	s, err := t.open(op, db)
	if err != nil {
		return err
	}
	// It finds the lane without locks: InnoDB would lock all rows that it scans.
	var lane int64
	const which = ` message_id = ? and why in ('` + WhyRetry + `', '` + WhyBlocked + `')`
	found, err := s.Row(ctx, `select lane from {lanes} where`+which, []any{id}, &lane)
	if err == nil && found {
		found, err = s.Row(ctx, `select lane from {lanes} where lane = ? and`+which+` for update`, []any{lane, id}, &lane)
	}
	switch {
	case err != nil:
		return s.failed(err)
	case !found:
		return s.notFound("waiting message", id)
	}
	return s.failed(s.exec(ctx, `update {lanes} set wait_until = {micros start} where lane = ?`, lane))
}

// openFor opens t for an operation that the audit records.
func (t Table) openFor(op string, db driver.SQL, reason, by string) (store, error) {
	if err := checkAudit(op, t, reason, by); err != nil {
		return store{}, err
	}
	return t.open(op, db)
}

// checkAudit rejects a blank reason or actor.
func checkAudit(op string, t Table, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return failure.Bug(op, t.name(), "a reason is required")
	case strings.TrimSpace(by) == "":
		return failure.Bug(op, t.name(), "an actor is required")
	}
	return nil
}

// take locks dead letters and writes the audit.
func (t Table) take(ctx context.Context, db driver.SQL, op string, ids []string, reason, by string) (store, []row, error) {
	s, err := t.openFor(op, db, reason, by)
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

// inOrder returns an OrderError if an earlier letter of a key is not replayed.
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

// lockLanes locks the lanes that wait, and returns them.
func (s store) lockLanes(ctx context.Context, lanes []int64) (waiting []int64, err error) {
	return sqltable.Column[int64](ctx, s.Tables, s.lockBy(`{lanes}`, `lane`, lanes))
}

// leaveDead deletes letters, and continues lanes that wait for no other letter. The lanes are
// locked.
func (s store) leaveDead(ctx context.Context, rows, lanes []int64) error {
	if err := s.exec(ctx, s.deleteBy(`{dead}`, `id`, rows)); err != nil {
		return err
	}
	return s.goOnWithout(ctx, lanes)
}

// goOnWithout continues lanes that wait for a dead letter and have none.
func (s store) goOnWithout(ctx context.Context, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
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

// goOnFrom makes the lanes due that wait for a reason.
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

// record writes the audit of an operation on letters.
func (s store) record(ctx context.Context, op string, rows []int64, reason, by string) error {
	action, _, _ := strings.Cut(op, " ")
	return s.exec(ctx, `insert into {audit} (action, message_id, topic, msg_key, reason, done_by, done_at)
		select '`+action+`', message_id, topic, msg_key, ?, ?, {micros start} from {dead} where id in (`+list(rows)+`) order by id`, sqltable.Clean(reason), sqltable.Clean(by))
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
