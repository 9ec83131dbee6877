package rowlock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Lock locks the rows with the given keys in the user's transaction, in the
// order of their keys, and returns the keys of those that are locked now, in
// that order. A key that has no row is not among them, nor, with SkipLocked, one
// that another transaction has locked. The locks last until the transaction
// ends. It blocks as r.Mode and r.Wait say: r.Wait bounds the wait for each row,
// so the first of n rows can stay locked for n-1 waits. [Tx] bounds them together.
//
// After an error the transaction must be rolled back: [interlock.ErrHeld]
// (Retryable) if a row could not be had with NoWait or within r.Wait, another
// Retryable error such as a deadlock with somebody who locks in another order,
// or one of kind Bug if r or keys are wrong.
func Lock[K Key](ctx context.Context, tx driver.SQL, r Rows, keys ...K) (locked []K, err error) {
	return lock(ctx, tx, r, keys, nil)
}

// lock is Lock. If it may have to wait for a row while it holds another one, it
// locks the first row by a statement of its own, and then calls bound, which
// returns the context for the rest.
func lock[K Key](ctx context.Context, tx driver.SQL, r Rows, keys []K, bound func() (context.Context, error)) (locked []K, err error) {
	t, query, err := r.query(tx, len(keys))
	if err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	restore, err := r.boundWait(ctx, t)
	apart := bound != nil && r.Mode == Wait && len(keys) > 1
	if err == nil {
		locked, err = run(ctx, t, query, keys, apart)
	}
	if err == nil && apart && len(locked) > 0 {
		if ctx, err = bound(); err == nil {
			locked, err = run(ctx, t, query, keys, false)
		}
	}
	if err == nil {
		err = restore()
	}
	if err != nil {
		return nil, r.about(err)
	}
	return locked, nil
}

// run locks the rows, or only the first that exists, by one statement, which locks them
// in the order in which it returns them.
func run[K Key](ctx context.Context, t sqltable.Tables, query string, keys []K, first bool) ([]K, error) {
	args := make([]any, len(keys))
	for i, k := range keys {
		args[i] = k
	}
	limit := ""
	if first {
		limit = "limit 1 "
	}
	return sqltable.Column[K](ctx, t, fmt.Sprintf(query, strings.Repeat(", ?", len(keys))[2:], limit), args...)
}

// query opens the table, and returns the query for n rows; see run.
func (r Rows) query(tx driver.SQL, n int) (t sqltable.Tables, query string, err error) {
	if n == 0 || n > MaxKeys {
		return t, "", failure.Bug("lock rows", r.Table, "%d keys were given; 1 to %d can be locked", n, MaxKeys)
	}
	if t, err = sqltable.OpenUsers("lock rows", r.Table, tx, "rows", r.Table, "key", r.Key); err != nil {
		return t, "", err
	}
	clause, err := r.Clause(tx.Dialect())
	return t, "select {key} from {rows} where {key} in (%s) order by {key} %s" + clause, err
}

// Clause is what makes a SELECT of the user's own lock the rows that it finds, in
// the mode of r: "FOR UPDATE SKIP LOCKED" and so on. It belongs at the end, after
// an ORDER BY that others share. r.Table and r.Key are not used. On PostgreSQL
// r.Wait is not in it: set lock_timeout.
func (r Rows) Clause(d driver.Dialect) (string, error) {
	if r.Wait < 0 || r.Wait > 0 && r.Mode != Wait {
		return "", failure.Bug("lock rows", r.Table, "Wait is %v; only mode Wait takes one, above zero", r.Wait)
	}
	var how string
	switch r.Mode {
	case Wait:
		if d == driver.MariaDB && r.Wait > 0 {
			how = fmt.Sprintf(" wait %d", seconds(r.Wait))
		}
	case NoWait:
		how = " nowait"
	case SkipLocked:
		how = " skip locked"
	default:
		return "", failure.Bug("lock rows", r.Table, "mode %d is not known", int(r.Mode))
	}
	return strings.ToUpper("for update" + how), nil
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// boundWait sets PostgreSQL's lock_timeout for the statements to come; restore
// puts the former one back. MariaDB has the bound in the statement itself.
func (r Rows) boundWait(ctx context.Context, t sqltable.Tables) (restore func() error, err error) {
	if r.Wait == 0 || t.Maria() {
		return func() error { return nil }, nil
	}
	const set = `select set_config('lock_timeout', ?, true)`
	var former string
	_, err = t.Row(ctx, `select current_setting('lock_timeout')`, nil, &former)
	if err == nil {
		_, err = t.Exec(ctx, set, fmt.Sprintf("%dms", max(1, r.Wait.Milliseconds())))
	}
	return func() error {
		_, err := t.Exec(ctx, set, former)
		return err
	}, err
}

// about makes a driver's error one of locking rows. An Uncertain one did nothing, in a
// transaction that is not going to be committed.
func (r Rows) about(err error) error {
	return failure.Uncommitted(failure.About("lock rows", r.Table, err))
}
