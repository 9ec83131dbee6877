package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Steps and starts in the same database transaction as their records.

// Appender is a journal in a database that can append in a user's transaction: a
// [*journal.Table].
type Appender = journal.TxStore

// localAction runs a step in a transaction of its own, records its output there by record, and commits
// both.
type localAction func(ctx context.Context, input json.RawMessage, record recordIn) (driver.Append, error)

// recordIn appends within a transaction that a step was done.
type recordIn func(ctx context.Context, table Appender, db driver.SQL, output json.RawMessage) (driver.Append, error)

// local reports whether a sent step commits together with its record. Without the record it was not done,
// because an abort has read the last record.
func (p plan) local(sent *progress) bool {
	s := p.undoOf(sent.undo)
	return sent.undo != "" && s != nil && s.local != nil
}

func (c *call) local() bool { return c.step.local != nil && c.phase != inUndo }

// StepTx returns a step that runs exactly once: in a transaction of db, which has the table of
// the engine's journal. The transaction commits the effects together with the step's record. The
// action must not end the transaction. An error rolls back; Fail aborts the saga, any other error
// is retried. An undo works like that of a [Step]. Do not turn a Step into a StepTx of the same
// name while sagas with it are unfinished: a call without a record would count as never made.
func StepTx[I, O, T any](name string, db driver.Beginner[T], table Appender, action func(ctx context.Context, tx driver.Tx[T], input I) (O, error)) Action[I, O] {
	s := step{name: name, key: name}
	if action == nil || db == nil || table == nil {
		return Action[I, O]{s}
	}
	s.local = func(ctx context.Context, text json.RawMessage, record recordIn) (a driver.Append, err error) {
		var input I
		if err := json.Unmarshal(text, &input); err != nil {
			return a, Retry(fmt.Errorf("read the input of step %q: %w", name, err))
		}
		written := false
		err = transact.Do(ctx, db.Begin, name, func(tx driver.Tx[T]) error {
			output, err := action(ctx, tx, input)
			if err != nil {
				return err
			}
			text, err := stored(name, output)
			if err != nil {
				return err
			}
			a, err = record(ctx, table, tx, text)
			written = err == nil
			return err
		})
		return a, asConflict(err, written)
	}
	return Action[I, O]{s}
}

// asConflict turns an error after which the journal must be read again into a [journal.ErrConflict].
func asConflict(err error, written bool) error {
	var elsewhere *driver.PositionError
	if errors.As(err, &elsewhere) || written && interlock.Kind(err) == interlock.Uncertain {
		return fmt.Errorf("%w: %w", journal.ErrConflict, err)
	}
	return err
}

// runLocal runs a step that commits together with its record. Pending records are written with it.
func (d *drive) runLocal(ctx context.Context, c *call, input []byte) error {
	var after machine
	a, err := c.step.local(ctx, input, func(ctx context.Context, table Appender, db driver.SQL, output json.RawMessage) (a driver.Append, err error) {
		done := journal.Entry{Kind: recordDone, Step: c.p.key, Data: output}
		if after, err = d.m.with(done); err != nil {
			return a, bug("drive saga", d.ID(), err)
		}
		due := d.Now().Add(parked)
		return d.Log().AppendIn(ctx, table, db, due, d.appendPending(done)...)
	})
	if err != nil {
		return err
	}
	d.m = after
	d.flushed()
	return d.Write(func(context.Context) error {
		d.Log().Accept(a)
		return nil
	})
}

// StartTx is [Definition.Start] in a transaction of the user, on the database that has the
// table of the engine's journal. The saga begins if and when the transaction commits. Its owner
// finds it within Options.Poll of the coordinator; [coordinator.Coordinator.Nudge] after the
// commit makes that immediate. Roll the transaction back after an error. StartTx needs no other
// connection, whether or not the saga exists and however large the input is.
func (d Definition[I]) StartTx(ctx context.Context, e *Engine, table Appender, tx driver.SQL, id string, input I) error {
	p, text, err := e.known(d.plan.key(), id, input)
	if err != nil {
		return err
	}
	now := e.coordinator.Now()
	c, err := p.opening(id, text, now, time.Time{})
	if err != nil {
		return err
	}
	err = e.coordinator.Journal().BeginIn(ctx, table, tx, id, protocol+":"+p.key(), now, c.opened()...)
	if errors.Is(err, journal.ErrExists) {
		return attachIn(ctx, e.coordinator.Journal(), table, tx, p.key(), id, text)
	}
	return err
}

// attachIn is attach within a transaction of the user.
func attachIn(ctx context.Context, j *journal.Journal, table Appender, tx driver.SQL, definition, id string, input []byte) error {
	head, first, err := j.FirstIn(ctx, table, tx, id)
	if err != nil {
		return err
	}
	m, err := replay([]journal.Entry{first})
	if err != nil {
		return bug("read saga", id, err)
	}
	return mismatch(head, &m, definition, input)
}
