package outbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// settle stores the outcome of a batch. It is idempotent.
func (s store) settle(ctx context.Context, slice int, d settlement) error {
	for _, step := range []func(context.Context, int, settlement) error{s.remove, s.park, s.wait, s.ensure, s.bury, s.unpark, s.relieve} {
		if err := step(ctx, slice, d); err != nil {
			return s.failed(err)
		}
	}
	return nil
}

func (s store) remove(ctx context.Context, _ int, d settlement) error {
	if len(d.sent) == 0 {
		return nil
	}
	query, args := s.delivered(d.sent)
	return s.exec(ctx, query, args...)
}

func (s store) park(ctx context.Context, _ int, d settlement) error {
	if len(d.park) == 0 {
		return nil
	}
	return s.exec(ctx, s.updateBy(`{messages}`, `id`, ids64(d.park), `parked = true`))
}

// wait stores which lanes wait, until when, and why.
func (s store) wait(ctx context.Context, slice int, d settlement) error {
	return s.lanes(ctx, slice, d.changes,
		`{or lane} message_id = {new message_id}, head = {new head}, why = {new why}, attempts = {new attempts},
		last_error = {new last_error}, wait_until = {new wait_until}`)
}

// ensure makes the lanes of parked messages wait unless they do already.
func (s store) ensure(ctx context.Context, slice int, d settlement) error {
	var queued []change
	for _, r := range d.park {
		queued = append(queued, change{row: row{lane: r.lane, Message: r.Message}, why: WhyQueued})
	}
	return s.lanes(ctx, slice, queued, `{leave lane}`)
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
		args = append(args, c.lane, slice, c.Topic, c.Key, c.ID, c.id, c.why, c.attempts, errorText(c.err), c.pause.Microseconds())
	}
	row := `(?, ?, ?, {?}, ?, ?, ?, ?, {?}, {micros start}, {micros start} + ?),`
	return s.exec(ctx, `insert into {lanes} (lane, slice, topic, msg_key, message_id, head, why, attempts, last_error, since, wait_until)
		values `+strings.TrimSuffix(strings.Repeat(row, len(changes)), ",")+` `+conflict, args...)
}

// bury moves messages to the dead letters.
func (s store) bury(ctx context.Context, _ int, d settlement) error {
	for _, c := range d.dead {
		err := s.exec(ctx, `insert into {dead} (id, message_id, slice, lane, topic, msg_key, headers, payload, added, attempts, last_error, died)
			select id, message_id, slice, lane, topic, msg_key, headers, payload, added, cast(? as int), {?}, {micros start}
			from {messages} where id = ? {leave id}`, c.attempts, errorText(c.err), c.id)
		if err != nil {
			return err
		}
		if err := s.exec(ctx, s.deleteBy(`{messages}`, `id`, []int64{c.id})); err != nil {
			return err
		}
	}
	return nil
}

// unpark continues lanes that were to wait for a dead letter which an operator has made and removed
// meanwhile.
func (s store) unpark(ctx context.Context, _ int, d settlement) error {
	var lanes []int64
	for _, c := range d.changes {
		if c.why == WhyDead {
			lanes = append(lanes, c.lane)
		}
	}
	return s.goOnWithout(ctx, lanes)
}

// relieve continues lanes that waited: those with parked messages are due at once, the others are
// free.
func (s store) relieve(ctx context.Context, _ int, d settlement) error {
	if len(d.relieved) == 0 {
		return nil
	}
	// A concurrent replay may park a message of such a lane. It holds the lock of the lane, so the
	// next statement sees its message.
	if _, err := s.lockLanes(ctx, d.relieved); err != nil {
		return err
	}
	// A condition of the DELETE would lock rows in InnoDB. One entry of the index is read for each lane,
	// however many messages are parked.
	parked, err := sqltable.Column[int64](ctx, s.Tables, `select l.lane from {lanes} l where l.lane in (`+list(d.relieved)+`) and
		(select 1 from {messages} o{maria  force index (parked)} where o.lane = l.lane and o.parked = true order by o.id limit 1) = 1`)
	if err != nil {
		return err
	}
	free := slices.DeleteFunc(slices.Clone(d.relieved), func(lane int64) bool { return slices.Contains(parked, lane) })
	if len(free) > 0 {
		if err := s.exec(ctx, s.deleteBy(`{lanes}`, `lane`, free)); err != nil {
			return err
		}
	}
	return s.goOn(ctx, parked)
}

// goOn makes lanes due at once.
func (s store) goOn(ctx context.Context, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
	}
	return s.exec(ctx, s.updateBy(`{lanes}`, `lane`, lanes,
		`why = '`+WhyQueued+`', attempts = 0, head = 0, wait_until = {micros start}`))
}

// DefaultKeepAudit is the default of Options.KeepAudit.
const DefaultKeepAudit = 90 * 24 * time.Hour

const (
	trimEvery     = time.Hour
	expediteEvery = time.Minute
	tidyBatch     = 500 // rows that one transaction changes
)

// trim deletes old audit records, about once an hour. Slice 0 does it for all.
func (s *service) trim(ctx context.Context) {
	if s.slice != 0 || s.options.KeepAudit < 0 || s.options.now().Before(s.trimAt) {
		return
	}
	s.trimAt = s.options.now().Add(trimEvery + time.Duration(s.options.random()*float64(trimEvery/4)))
	s.tidy(ctx, "trim audit", func(st store) (int, error) { return st.trim(ctx, s.options.KeepAudit) })
}

// expedite makes lanes due that wait for longer than a pause: the clock of the database was set back. It
// looks once a minute.
func (s *service) expedite(ctx context.Context) {
	if s.options.now().Before(s.expediteAt) {
		return
	}
	s.expediteAt = s.options.now().Add(expediteEvery)
	s.tidy(ctx, "expedite keys", func(st store) (int, error) { return st.expedite(ctx, s.slice, s.options.MaxPause) })
}

// tidy runs work, which returns how many rows it changed, in transactions until none is left. After an error
// it tries again the next time.
func (s *service) tidy(ctx context.Context, op string, work func(store) (int, error)) {
	for n := tidyBatch; n == tidyBatch && ctx.Err() == nil; {
		err := transact.Do(ctx, s.db.Begin, s.table.name(), func(tx driver.Tx[driver.SQL]) error {
			st, err := s.table.open(op, tx)
			if err == nil {
				n, err = work(st)
			}
			if err == nil && n == 0 {
				err = transact.ErrNothing
			}
			return err
		})
		if err != nil {
			if ctx.Err() == nil {
				report.Add(&s.reports, nil, s.options.Hooks.Trouble, observe.OutboxTrouble{Slice: s.slice, Op: op, Err: err})
			}
			return
		}
	}
}

// expedite makes lanes of failed and queued messages due whose time is further ahead than longest, one batch at most.
func (s store) expedite(ctx context.Context, slice int, longest time.Duration) (int, error) {
	const failed = `why in ('` + WhyQueued + `', '` + WhyRetry + `', '` + WhyBlocked + `')`
	lanes, err := sqltable.Column[int64](ctx, s.Tables, `select lane from {lanes} where slice = ? and wait_until > {micros start} + ? and `+failed+` limit ?`,
		slice, longest.Microseconds(), tidyBatch)
	if err == nil && len(lanes) > 0 { // a lane may have begun to wait for something else
		err = s.exec(ctx, s.updateBy(`{lanes}`, `lane`, lanes, `wait_until = case when `+failed+` then {micros start} else wait_until end`))
	}
	return len(lanes), s.failed(err)
}

// trim deletes those of the oldest records that are older than keep, one batch at most. It reads no
// other records: ids increase with time.
func (s store) trim(ctx context.Context, keep time.Duration) (int, error) {
	var old []int64
	err := s.Each(ctx, `select id, {micros start} - done_at from {audit} order by id limit ?`, []any{tidyBatch}, func(scan func(...any) error) error {
		var id, age int64
		err := scan(&id, &age)
		if age > keep.Microseconds() {
			old = append(old, id)
		}
		return err
	})
	if err != nil || len(old) == 0 {
		return 0, s.failed(err)
	}
	return len(old), s.failed(s.exec(ctx, `delete from {audit} where id in (`+list(old)+`)`))
}
