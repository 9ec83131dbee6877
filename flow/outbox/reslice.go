package outbox

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/transact"
)

// DefaultSliceWait is how long [SetSlices] waits for transactions under way.
const DefaultSliceWait = time.Minute

// moveBatch is how many rows one transaction moves.
const moveBatch = 1000

// A SliceChange is a change of the number of slices by [SetSlices].
type SliceChange struct {
	Slices     int    // the new number, 1 to [MaxSlices]
	Reason, By string // why, and who does it; kept in the audit, neither may be blank
	// Wait is how long one step is tried again while transactions that have added messages
	// are under way, or the database does not answer; 0 means [DefaultSliceWait].
	Wait time.Duration
	// Progress is called after each transaction that moved rows, with how many were
	// moved so far; nil means that nothing is.
	Progress func(moved int64)
}

// SetSlices changes the number of slices of a table, while it is in use, and returns how
// many messages, waiting keys and dead letters it moved to another slice.
//
// It first waits for the transactions that have added messages: until they have ended, or
// for two seconds at a time, other transactions that add messages wait too. From then on
// messages are added by the new number, and relays wait. It moves what is there, in
// transactions of a thousand rows, and then lets the relays go on: [Relay.RunAll] serves
// the new number; [Relay.RunOf] returns a [*LayoutError] until its group was resized; a
// Table that names the former number is refused. What a relay had sent and not stored
// yet is sent again.
//
// It blocks until the change is in force. If it fails, or is interrupted, after the
// change has begun, relays wait until it is called again, with the same number or another
// one. If the table has that number already nothing is done.
//
// On PostgreSQL it needs the rights of the tables' owner. A transaction of level REPEATABLE
// READ or above that began before the change and adds messages after it fails there, as
// Retryable.
func SetSlices[T any](ctx context.Context, db driver.Beginner[T], t Table, change SliceChange) (moved int64, err error) {
	const op = "set slices"
	change.Wait = cmp.Or(change.Wait, DefaultSliceWait)
	switch {
	case db == nil:
		return 0, failure.Bug(op, t.name(), "there is no database")
	case change.Slices < 1 || change.Slices > MaxSlices:
		return 0, failure.Bug(op, t.name(), "%d slices are impossible: 1 to %d", change.Slices, MaxSlices)
	case change.Wait < 0:
		return 0, failure.Bug(op, t.name(), "a wait of %v", change.Wait)
	}
	if err := answerable(op, t, change.Reason, change.By); err != nil {
		return 0, err
	}
	t.Slices = 0
	m := &mover{db: begins[T]{db}, table: t, SliceChange: change}
	if err := m.step(ctx, m.begin); err != nil || !m.layout.Changing {
		return 0, err
	}
	// The pass that finds nothing shows that all is where it belongs.
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
	layout Layout // that is changed to
	moved  int64
}

// lockWait is how long it is waited for transactions at a time, while others queue behind.
func (m *mover) lockWait() time.Duration { return min(m.Wait, 2*time.Second) }

// exclusive ends a select of rows that this transaction changes.
func (m *mover) exclusive() string {
	return `for update{maria  wait ` + strconv.Itoa(int(m.lockWait()/time.Second)) + `}`
}

// rowsOf are the rows of a table by their primary key.
type rowsOf struct{ table, key string }

// step runs work in a transaction, again if that may be repeated, for Wait.
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
		select {
		case <-time.After(pause.Delay(failed, rand.Float64())):
		case <-patience.Done():
			return fmt.Errorf("%w; transactions that add messages may be under way: repeat the change", err)
		}
	}
}

// begin announces the change: relays wait from its commit on, and all that is added
// after that uses the new number.
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
	if !s.Maria() { // there each insert reads the number of slices, and keeps it from being changed
		// To add a constraint is to lock the table, which waits for all transactions that
		// have added messages; it is enforced also where a transaction reads a snapshot from
		// before the change. Rows that are there are moved later.
		if err := s.exec(ctx, `alter table {messages} drop constraint if exists interlock_slices,
			add constraint interlock_slices check (slice = `+sliceOf(strconv.Itoa(m.Slices))+`) not valid`); err != nil {
			return err
		}
	}
	return m.record(ctx, s, fmt.Sprintf("%d to %d", l.Slices, m.Slices))
}

// move puts rows into their slices, a batch at a time, in the order of their keys.
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

// moveBatch moves rows while no other change begins.
func (m *mover) moveBatch(ctx context.Context, s store, rows rowsOf, from int64) (wrong []int64, err error) {
	if err := s.unchanged(ctx, m.layout, `{share}`); err != nil {
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

// end puts the change in force, once.
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

// record keeps who changes the number of slices, and why.
func (m *mover) record(ctx context.Context, s store, what string) error {
	return s.exec(ctx, `insert into {audit} (action, message_id, topic, msg_key, reason, done_by, done_at)
		values ('slices', ?, {empty}, {empty}, ?, ?, {micros start})`, what, label(m.Reason), label(m.By))
}
