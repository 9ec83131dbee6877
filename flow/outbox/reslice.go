package outbox

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// DefaultSliceWait is how long [SetSlices] waits for open transactions.
const DefaultSliceWait = time.Minute

const moveBatch = 1000 // rows that one transaction moves

// A SliceChange is a change of the number of slices by [SetSlices].
type SliceChange struct {
	Slices     int    // the new number, 1 to [MaxSlices]
	Reason, By string // for the audit: why, and who; neither may be blank
	// Wait is how long one step is retried while transactions that added messages are open, or the
	// database does not answer; 0 means [DefaultSliceWait].
	Wait time.Duration
	// Progress is called after each transaction that moved rows, with the total so far; nil disables
	// it.
	Progress func(moved int64)
}

// SetSlices changes the number of slices of a table that is in use. It returns how many messages,
// waiting keys and dead letters it moved to another slice, and blocks until the change is in force:
//
//  1. It waits for open transactions that added messages. Until they end, or for two seconds at a
//     time, other transactions that add messages wait too.
//  2. From then on the new number applies to new messages, and relays wait. SetSlices moves the rows,
//     a thousand in each transaction.
//  3. Relays continue: [Relay.RunAll] serves the new number; [Relay.RunOf] returns a [*LayoutError]
//     until its group is resized; a Table with the former number is rejected. Messages that a relay
//     had sent and not settled are sent again.
//
// If it fails or is interrupted after step 1, relays wait until it is called again, with any number.
// If the table has the number already, nothing changes.
//
// On PostgreSQL it needs the rights of the owner of the tables. There a transaction of REPEATABLE READ
// or above that began before the change and adds messages after it fails as Retryable.
func SetSlices[T any](ctx context.Context, db driver.Beginner[T], t Table, change SliceChange) (moved int64, err error) {
	const op = "set slices"
	change.Wait = cmp.Or(change.Wait, DefaultSliceWait)
	switch {
	case db == nil:
		return 0, failure.Bug(op, t.name(), "a database is required")
	case change.Slices < 1 || change.Slices > MaxSlices:
		return 0, failure.Bug(op, t.name(), "%d slices; 1 to %d are allowed", change.Slices, MaxSlices)
	case change.Wait < 0:
		return 0, failure.Bug(op, t.name(), "a negative wait of %v", change.Wait)
	}
	if err := checkAudit(op, t, change.Reason, change.By); err != nil {
		return 0, err
	}
	t.Slices = 0
	m := &mover{db: untyped[T]{db}, table: t, SliceChange: change}
	if err := m.step(ctx, m.begin); err != nil || !m.layout.Changing {
		return 0, err
	}
	// A pass that finds nothing proves that all rows are in their slices.
	for before := int64(-1); before < m.moved; {
		before = m.moved
		for _, rows := range []rowsOf{{`{messages}`, `id`}, {`{lanes}`, `lane`}, {`{dead}`, `id`}} {
			if err := m.move(ctx, rows); err != nil {
				return m.moved, err
			}
		}
	}
	return m.moved, m.step(ctx, m.end)
}

// mover is one call of [SetSlices].
type mover struct {
	SliceChange
	db     driver.Beginner[driver.SQL]
	table  Table
	layout Layout // the new one
	moved  int64
}

// lockWait returns how long one attempt waits for a lock, while other transactions wait for the
// attempt.
func (m *mover) lockWait() time.Duration { return min(m.Wait, 2*time.Second) }

// exclusive ends a select of rows that this transaction changes.
func (m *mover) exclusive() string {
	return `for update{maria  wait ` + strconv.Itoa(int(m.lockWait()/time.Second)) + `}`
}

// rowsOf are the rows of a table by their primary key.
type rowsOf struct{ table, key string }

// step runs work in a transaction, and retries it within Wait.
func (m *mover) step(ctx context.Context, work func(context.Context, store) error) error {
	patience, cancel := context.WithTimeout(ctx, m.Wait)
	defer cancel()
	pause := backoff.Policy{First: 100 * time.Millisecond, Max: time.Second}
	for failed := 1; ; failed++ {
		err := transact.Do(ctx, m.db.Begin, m.table.name(), func(tx driver.Tx[driver.SQL]) error {
			s, err := m.table.open("set slices", tx)
			if err == nil {
				err = s.failed(work(ctx, s))
			}
			return err
		})
		if kind := interlock.Kind(err); err == nil || kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil {
			return err
		}
		if !pause.Wait(patience, failed) {
			return fmt.Errorf("%w; transactions that add messages may be open: repeat the change", err)
		}
	}
}

// begin announces the change: after its commit relays wait, and new messages use the new number.
func (m *mover) begin(ctx context.Context, s store) error {
	if !s.Maria() {
		if err := s.exec(ctx, `set local lock_timeout = `+strconv.FormatInt(max(1, m.lockWait().Milliseconds()), 10)); err != nil {
			return err
		}
	}
	l, err := s.layout(ctx, m.exclusive())
	if m.layout = l; err != nil || l.Slices == m.Slices {
		return err
	}
	m.layout = Layout{Slices: m.Slices, Changing: true, changes: l.changes + 1}
	if err := s.exec(ctx, `update {layout} set slices = ? where one = 1`, -m.Slices); err != nil {
		return err
	}
	if err := s.exec(ctx, `insert into {layout} (one, slices) values (2, ?) {or one} slices = {new slices}`, m.layout.changes); err != nil {
		return err
	}
	if !s.Maria() { // on MariaDB each insert reads and locks the number of slices
		// Adding a constraint locks the table, so it waits for all transactions that added
		// messages. It also applies to transactions whose snapshot is older than the change.
		// Existing rows are moved later.
		if err := s.exec(ctx, `alter table {messages} drop constraint if exists interlock_slices,
			add constraint interlock_slices check (slice = `+sliceOf(strconv.Itoa(m.Slices))+`) not valid`); err != nil {
			return err
		}
	}
	return m.record(ctx, s, fmt.Sprintf("%d to %d", l.Slices, m.Slices))
}

// move moves rows to their slices, in batches, in the order of their keys.
func (m *mover) move(ctx context.Context, rows rowsOf) error {
	for from, full := int64(math.MinInt64), true; full; {
		var wrong []int64
		if err := m.step(ctx, func(ctx context.Context, s store) (err error) {
			wrong, err = m.moveBatch(ctx, s, rows, from)
			return err
		}); err != nil {
			return err
		}
		if full = len(wrong) == moveBatch; full {
			from = wrong[len(wrong)-1]
		}
		m.moved += int64(len(wrong))
		if m.Progress != nil && len(wrong) > 0 {
			m.Progress(m.moved)
		}
	}
	return nil
}

// moveBatch moves rows, and prevents the begin of another change.
func (m *mover) moveBatch(ctx context.Context, s store, rows rowsOf, from int64) (wrong []int64, err error) {
	if err := s.unchanged(ctx, m.layout); err != nil {
		return nil, err
	}
	right := sliceOf(strconv.Itoa(m.Slices))
	wrong, err = sqltable.Column[int64](ctx, s.Tables, `select `+rows.key+` from `+rows.table+` where `+rows.key+` >= ? and slice <> `+right+
		` order by `+rows.key+` limit `+strconv.Itoa(moveBatch), from)
	if err != nil || len(wrong) == 0 {
		return nil, err
	}
	return wrong, s.exec(ctx, s.updateBy(rows.table, rows.key, wrong, `slice = `+right))
}

// end puts the change in force. It may be repeated.
func (m *mover) end(ctx context.Context, s store) error {
	l, err := s.layout(ctx, m.exclusive())
	ended := Layout{Slices: m.Slices, changes: m.layout.changes}
	switch {
	case err != nil || l == ended:
		return err
	case l != m.layout:
		return errLayoutChanged
	}
	if err := s.exec(ctx, `update {layout} set slices = ? where one = 1`, m.Slices); err != nil {
		return err
	}
	return m.record(ctx, s, fmt.Sprintf("%d in force", m.Slices))
}

// record writes the audit.
func (m *mover) record(ctx context.Context, s store, what string) error {
	return s.exec(ctx, `insert into {audit} (action, message_id, topic, msg_key, reason, done_by, done_at)
		values ('slices', ?, {empty}, {empty}, ?, ?, {micros start})`, what, sqltable.Clean(m.Reason), sqltable.Clean(m.By))
}
