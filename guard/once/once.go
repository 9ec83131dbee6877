package once

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

var errOvertaken = errors.New("another transaction has applied the same message: roll back and retry; then it is a duplicate")

// Once records m in the caller's transaction and runs fn, which has m's effect there, unless m
// was recorded before. It takes one statement, two for a duplicate on PostgreSQL, and two on
// MariaDB for a message that begins an epoch. It returns:
//
//   - [Done] if fn ran. It takes effect when the caller has committed
//   - [Duplicate] if fn did not run, because the transaction that ran it has committed
//   - [Mismatched] and a [MismatchError], if another payload was recorded
//   - [Undone] and a [GapError], if an earlier message of its key is missing
//   - Undone and any other error. An error of fn is returned unchanged
//
// Once fn has begun, an error or a panic makes the transaction fail. Nothing in it can be
// committed any more, so there is no record without its effect. MariaDB rolls back at once;
// code that then uses the client's own handle writes outside of the transaction. There is one
// exception on MariaDB: if a statement by way of db timed out waiting for a lock, db cannot
// roll back. The record then stays in the transaction until the caller ends it. After any error
// other than those two types the caller must roll back too.
func (in Inbox) Once(ctx context.Context, db driver.SQL, m Message, fn func(ctx context.Context) error) (Outcome, error) {
	var outcome Outcome
	err := transact.Whole(ctx, db, halfDone, func(begin func()) (err error) {
		outcome, err = in.once(ctx, db, m, withBegin(begin, fn))
		return err
	})
	return outcome, err
}

// withBegin returns fn that calls begin first.
func withBegin(begin func(), fn func(context.Context) error) func(context.Context) error {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context) error {
		begin()
		return fn(ctx)
	}
}

// halfDone is the reason why a transaction whose effect failed cannot be committed.
const halfDone = "the effect of a message failed: its record must not be committed"

// once runs Once, and leaves the transaction to its caller.
func (in Inbox) once(ctx context.Context, db driver.SQL, m Message, fn func(context.Context) error) (outcome Outcome, err error) {
	t, err := in.admit(db, m, fn != nil)
	if err != nil {
		return Undone, err
	}
	switch {
	case m.Seq > 0:
		outcome, err = t.follow(ctx, m, fn)
	case in.Optimistic:
		outcome, err = t.late(ctx, m, fn)
	default:
		outcome, err = t.early(ctx, m, fn)
	}
	report(in.Hooks, in.Consumer, m, outcome, err)
	return outcome, err
}

// admit validates what is known before the first statement.
func (in Inbox) admit(db driver.SQL, m Message, effect bool) (tables, error) {
	if !effect {
		return tables{}, failure.Bug("receive", m.name(), "a function for the effect is required")
	}
	if err := m.check(); err != nil {
		return tables{}, err
	}
	return in.open("receive", m.name(), db)
}

// early records before the effect.
func (t tables) early(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	found, err := t.record(ctx, []entry{{m.ID, m.hash()}})
	if err != nil {
		return Undone, err
	}
	if found[m.ID].fresh {
		return finished(fn(ctx))
	}
	return t.classify(m, found)
}

// late records after the effect, unless a read shows that it is a duplicate.
func (t tables) late(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	found, err := t.look(ctx, []string{m.ID})
	if err != nil {
		return Undone, err
	}
	if _, ok := found[m.ID]; ok {
		return t.classify(m, found)
	}
	if err := fn(ctx); err != nil {
		return Undone, err
	}
	found, err = t.record(ctx, []entry{{m.ID, m.hash()}})
	if err == nil && !found[m.ID].fresh {
		return Undone, overtaken(m)
	}
	return finished(err)
}

// classify distinguishes a duplicate from another message of the same ID.
func (in Inbox) classify(m Message, found map[string]finding) (Outcome, error) {
	f, ok := found[m.ID]
	switch {
	case !ok: // it conflicted with what Clean has deleted since
		return Undone, retryable("receive", m.name(), "its record was cleaned away meanwhile")
	case !m.same(f.hash):
		return Mismatched, &MismatchError{Consumer: in.Consumer, Message: m.name()}
	}
	return Duplicate, nil
}

func finished(err error) (Outcome, error) {
	if err != nil {
		return Undone, err
	}
	return Done, nil
}
