package barrier

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/txn/branch"
)

// usable checks what is known before the database is asked.
func usable[T any](ctx context.Context, db driver.BeginnerAt[T], e event, effect bool) (claim, error) {
	c, err := asked(ctx, e)
	switch {
	case err != nil:
		return c, err
	case !effect:
		return c, failure.Bug("pass barrier", c.Key(), "there is no function to run")
	case db == nil:
		return c, failure.Bug("pass barrier", c.Key(), "there is no database")
	}
	return c, nil
}

// within runs work in a transaction, and commits it if it changed anything.
func within[T any](ctx context.Context, db driver.BeginnerAt[T], t Table, c claim,
	work func(tx driver.Tx[T], l ledger) (changed bool, err error)) error {
	return transact.Do(ctx, transact.At(db, t.Level), c.Key(), func(tx driver.Tx[T]) error {
		l, err := t.open(string(c.Operation), c.Key(), tx)
		if err == nil {
			err = l.Failed(t.bound(ctx, tx))
		}
		if err != nil {
			return err
		}
		changed, err := work(tx, l)
		if err == nil && !changed {
			return transact.ErrNothing
		}
		return err
	})
}

// waits are those between two runs of a transaction.
var waits = backoff.Policy{First: 10 * time.Millisecond, Max: 500 * time.Millisecond}

// repeat runs do again as long as the database undoes it because of others.
func (t Table) repeat(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		class, _ := branch.ClassOf(err)
		if err == nil || interlock.Kind(err) != interlock.Retryable || class != branch.ClassUnknown ||
			n >= t.attempts() || !t.wait(ctx, waits.Delay(n, t.chance())) {
			return marked(err)
		}
	}
}

// told returns err, after it called the alarm if it is a violation.
func (t Table) told(err error) error {
	var v *ViolationError
	if t.Alarm != nil && errors.As(err, &v) {
		t.Alarm(v)
	}
	return err
}
