package once

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

var errOvertaken = errors.New("the same message had its effect meanwhile, in another transaction: roll back, and it will be found a duplicate")

// Once records m in the caller's transaction and runs fn, which makes m's effect
// there, unless it was recorded before. One statement, two for a duplicate on
// PostgreSQL; a message that begins an epoch takes two on MariaDB. It returns:
//
//   - [Done] if fn ran. It counts when the caller has committed;
//   - [Duplicate] if not: the transaction that ran it has committed;
//   - [Mismatched] and a [MismatchError]: another payload was recorded;
//   - [Undone] and a [GapError]: a message of its key has to come before;
//   - Undone and any other error. If it is fn's, it is as fn returned it.
//
// Once fn has begun, an error, and also a panic, spoils the transaction: nothing in
// it can be committed any more, so that there is no record without its effect. On
// MariaDB it is rolled back at once; code that continues with the client's own handle then
// writes outside of it. It cannot be rolled back there by db after a statement by way
// of db waited too long for a lock: that leaves the record in the transaction, as long
// as the caller does. After any other error than those two types it must be rolled
// back too.
func (in Inbox) Once(ctx context.Context, db driver.SQL, m Message, fn func(ctx context.Context) error) (Outcome, error) {
	var outcome Outcome
	err := transact.Whole(ctx, db, halfDone, func(begin func()) (err error) {
		outcome, err = in.once(ctx, db, m, begun(begin, fn))
		return err
	})
	return outcome, err
}

// begun is fn that tells when it begins.
func begun(begin func(), fn func(context.Context) error) func(context.Context) error {
	if fn == nil {
		return nil
	}
	return func(ctx context.Context) error {
		begin()
		return fn(ctx)
	}
}

// halfDone is why a transaction cannot be committed whose effect failed.
const halfDone = "the effect of a message failed: its record must not be committed"

// once is Once that leaves the transaction to its caller.
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
	tell(in.Hooks, in.Consumer, m, outcome, err)
	return outcome, err
}

// admit checks what is known before the database is asked.
func (in Inbox) admit(db driver.SQL, m Message, effect bool) (tables, error) {
	if !effect {
		return tables{}, failure.Bug("receive", m.name(), "there is no function that makes its effect")
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
	return t.recognise(m, found)
}

// late records after the effect, if a look does not show that there is no need.
func (t tables) late(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	found, err := t.look(ctx, []string{m.ID})
	if err != nil {
		return Undone, err
	}
	if _, ok := found[m.ID]; ok {
		return t.recognise(m, found)
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

// recognise tells a duplicate from another message of the same ID.
func (in Inbox) recognise(m Message, found map[string]finding) (Outcome, error) {
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
