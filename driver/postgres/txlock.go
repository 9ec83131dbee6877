package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// TryTxLock acquires name until the end of the user's transaction, or returns false at once. Only the
// end of the transaction releases the lock; it can be acquired again inside it. It has no token, and
// writes of the transaction in this database need none: an ended transaction holds and writes nothing.
// It protects nothing outside of the database.
//
// It excludes a [Driver] of the default namespace on the same name. Waiters of the Driver notice the
// release within about a second. It works behind poolers. Errors are those of tx; a name that
// PostgreSQL cannot store is an interlock.ErrName.
func TryTxLock(ctx context.Context, tx driver.SQL, name string) (bool, error) {
	if err := lockable(tx, name); err != nil {
		return false, err
	}
	got := false
	err := tx.Query(ctx, `select pg_try_advisory_xact_lock($1)`, []any{Key(DefaultNamespace, name)},
		func(scan func(...any) error) error { return scan(&got) })
	return got, err
}

// TxLock is [TryTxLock], but waits in the server for up to wait, in order of arrival there; 0 means as
// long as the session's lock_timeout and ctx allow. When the time is over the error is Retryable and
// the transaction has failed: roll it back and run it again. Acquire several names in the same order
// everywhere; otherwise the server ends one of two transactions that wait for each other (Retryable,
// 40P01).
func TxLock(ctx context.Context, tx driver.SQL, name string, wait time.Duration) error {
	if err := lockable(tx, name); err != nil {
		return err
	}
	if wait < 0 {
		return problem("lock", name, interlock.Bug, fmt.Errorf("a wait of %v is impossible: it must be 0 or more", wait))
	}
	if wait == 0 {
		return takeTxLock(ctx, tx, name)
	}
	before, err := setTimeout(ctx, tx, strconv.FormatInt(max(1, wait.Milliseconds()), 10))
	if err != nil {
		return err
	}
	if err := takeTxLock(ctx, tx, name); err != nil {
		return err // the transaction has failed, and the setting ends with it
	}
	_, err = setTimeout(ctx, tx, before)
	return err
}

func takeTxLock(ctx context.Context, tx driver.SQL, name string) error {
	_, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1)`, Key(DefaultNamespace, name))
	return err
}

// setTimeout sets the transaction's lock_timeout and returns the former one.
func setTimeout(ctx context.Context, tx driver.SQL, value string) (before string, err error) {
	err = tx.Query(ctx, `with former as materialized (select current_setting('lock_timeout') as value)
		select value, set_config('lock_timeout', $1, true) from former`, []any{value},
		func(scan func(...any) error) error { var now string; return scan(&before, &now) })
	return before, err
}

func lockable(tx driver.SQL, name string) error {
	if tx.Dialect() != driver.Postgres {
		return problem("lock", name, interlock.Bug, fmt.Errorf("the transaction is one of %s", tx.Dialect()))
	}
	return fail.CheckNames("lock", name, "-")
}
