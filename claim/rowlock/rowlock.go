// Package rowlock locks rows of the caller's own tables inside the caller's own transaction. A
// lock does not outlive that transaction, does not cover rows that do not exist yet, and has no
// token. The transaction itself is the guard: a database commits nothing of a session that it
// has ended.
//
//	accounts := rowlock.Rows{Table: "account", Key: "id"}
//	err := rowlock.Tx(ctx, postgres.Pool(pool), accounts, []string{from, to}, nil,
//		func(ctx context.Context, tx pgx.Tx, locked []string) error {
//			return transfer(ctx, tx, from, to, amount)
//		})
//
// The package locks rows in the order of their keys, whatever the order of the arguments. So
// two transactions that lock several rows through this package do not deadlock over them.
// [Lock] does the same in a transaction that the caller began.
//
// A row lock is for short work on one database. While a transaction holds it, it should not
// wait for anything else. [Tx] warns about long scopes and ends them after a maximum. Package
// rowlocktest fails a test that makes a remote call inside a scope.
//
// MariaDB (10.6 or later) differs from PostgreSQL in two ways. It bounds waits and idle
// transactions in whole seconds. Under its default isolation it also locks the gap where a key
// was looked for and not found.
package rowlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/observe"
)

// Mode selects the behavior for a row that another transaction has locked.
type Mode int

const (
	// Wait waits until the row is free, at most Rows.Wait.
	Wait Mode = iota
	// NoWait fails with [interlock.ErrHeld].
	NoWait
	// SkipLocked leaves the row out, as workers of a queue do.
	SkipLocked
)

// MaxKeys is the maximum number of rows per call.
const MaxKeys = 1000

// Rows names the rows of a table and how to lock them.
type Rows struct {
	// Table is the table, or schema.table. Key is its primary key, or a column with a unique
	// index. Both are trusted and go into the SQL text: never take them from a request.
	Table, Key string
	// Mode is the behavior for a locked row; zero waits.
	Mode Mode
	// Wait bounds each wait of mode Wait; 0 keeps the session's own bound. More than 24 days
	// count as 24 days. MariaDB rounds it up to whole seconds.
	Wait time.Duration
}

// A Key is the Go type of a row's key.
type Key interface {
	~string | ~int | ~int16 | ~int32 | ~int64
}

// DefaultMaxHold is the default of Options.MaxHold.
const DefaultMaxHold = 5 * time.Second

// Options configure a scope; nil and the zero value are valid.
type Options struct {
	// MaxHold bounds the time for which rows stay locked, from the first lock on, including
	// waits for the other rows. At its end the function's context ends with [ErrMaxHold] and
	// nothing is committed. The server enforces it too: it ends waits, and transactions that
	// are idle for that long, so a paused process blocks nobody. 0 means [DefaultMaxHold].
	MaxHold time.Duration
	// WarnAfter is the time after which Hooks.Slow is called; 0 means half of MaxHold.
	WarnAfter time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.RowLock
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	r.MaxHold = cmp.Or(r.MaxHold, DefaultMaxHold)
	r.WarnAfter = cmp.Or(r.WarnAfter, r.MaxHold/2)
	r.Hooks = r.Hooks.WithDefaults()
	if r.MaxHold < time.Millisecond || r.WarnAfter < 0 || r.WarnAfter > r.MaxHold {
		return r, failure.Bug("open scope", "", "MaxHold must be a millisecond or more, and WarnAfter between 0 and MaxHold")
	}
	return r, nil
}

// Lock locks the rows with the given keys in the caller's transaction, in key order. It returns
// the keys of the locked rows in that order. Keys without a row are left out; with SkipLocked,
// so are rows that another transaction has locked. The locks last until the transaction ends.
// It blocks according to r.Mode and r.Wait. r.Wait bounds the wait for each row, so the first
// of n rows can stay locked for n-1 waits. [Tx] bounds all waits together.
//
// After an error the transaction must be rolled back. The error is one of:
//
//   - [interlock.ErrHeld] (Retryable), if a row is locked with NoWait or beyond r.Wait
//   - another Retryable error, such as a deadlock with a transaction that locks in another
//     order
//   - an error of kind Bug, if r or keys are invalid
func Lock[K Key](ctx context.Context, tx driver.SQL, r Rows, keys ...K) (locked []K, err error) {
	return lock(ctx, tx, r, keys, nil)
}

// lock implements Lock. If it may have to wait for a row while it holds another one, it locks
// the first row by a separate statement. It then calls bound, which returns the context for the
// rest.
func lock[K Key](ctx context.Context, tx driver.SQL, r Rows, keys []K, bound func() (context.Context, error)) (locked []K, err error) {
	t, query, err := r.query(tx, len(keys))
	if err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	restore, err := r.boundWait(ctx, t)
	firstAlone := bound != nil && r.Mode == Wait && len(keys) > 1
	if err == nil {
		locked, err = run(ctx, t, query, keys, firstAlone)
	}
	if err == nil && firstAlone && len(locked) > 0 {
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

// run locks the rows, or only the first that exists, in one statement, which locks them in the
// order in which it returns them.
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

// Clause returns the end of a SELECT that locks the rows it finds, in the mode of r: "FOR
// UPDATE SKIP LOCKED" and so on. Append it after an ORDER BY that all transactions share. It
// ignores r.Table and r.Key. On PostgreSQL it does not contain r.Wait: set lock_timeout
// instead.
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
		return "", failure.Bug("lock rows", r.Table, "unknown mode %d", int(r.Mode))
	}
	return strings.ToUpper("for update" + how), nil
}

// longest is the longest bound of a wait that PostgreSQL accepts, in whole days.
const longest = 24 * 24 * time.Hour

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((min(d, longest) + time.Second - 1) / time.Second) }

// boundWait sets PostgreSQL's lock_timeout for the next statements; restore resets it. MariaDB
// has the bound in the statement itself.
func (r Rows) boundWait(ctx context.Context, t sqltable.Tables) (restore func() error, err error) {
	if r.Wait == 0 || t.Maria() {
		return func() error { return nil }, nil
	}
	const set = `select set_config('lock_timeout', ?, true)`
	var former string
	_, err = t.Row(ctx, `select current_setting('lock_timeout')`, nil, &former)
	if err == nil {
		_, err = t.Exec(ctx, set, fmt.Sprintf("%dms", max(1, min(r.Wait, longest).Milliseconds())))
	}
	return func() error {
		_, err := t.Exec(ctx, set, former)
		return err
	}, err
}

// about wraps a driver's error as one of locking rows. An Uncertain error had no effect,
// because the transaction will not commit.
func (r Rows) about(err error) error {
	return failure.Uncommitted(failure.About("lock rows", r.Table, err))
}

// ErrMaxHold is the cause with which a scope's context ends if its rows were locked for longer
// than Options.MaxHold.
var ErrMaxHold = errors.New("rows were locked for too long")

// Tx begins a transaction of db, locks the rows with the given keys as [Lock] does, and calls
// fn. It commits if fn returns nil within o.MaxHold. fn must not end the transaction, and
// should wait for nothing but the database, because others wait for these rows.
//
// Tx returns nil if the transaction was committed. Otherwise the error is one of:
//
//   - the error of Lock
//   - the error of fn, after a rollback. A driver's of unknown outcome becomes Retryable
//   - one with [ErrMaxHold] in its chain, after a rollback
//   - one of kind Uncertain, if COMMIT was sent and its reply was lost
//
// After a Retryable error nothing has changed and the caller may call Tx again; Tx does not
// retry. A rollback ignores the cancellation of ctx and has its own bound. Tx also rolls back
// if fn panics.
func Tx[K Key, T any](ctx context.Context, db driver.Beginner[T], r Rows, keys []K, o *Options,
	fn func(ctx context.Context, tx T, locked []K) error) error {
	options, err := o.resolve()
	if err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return r.about(err)
	}
	sent := false
	defer func() {
		if !sent {
			// If this fails the connection is closed; COMMIT was never sent.
			_ = tx.Rollback(ctx)
		}
	}()
	s := &scope{table: r.Table, options: options}
	defer func() { s.close(err) }()
	locked, err := begin(ctx, tx, r, keys, s)
	if err != nil {
		return err
	}
	if err = fn(s.ctx, tx.Native(), locked); err != nil {
		err = s.withMaxHold(failure.Uncommitted(tx.Classify(err)))
		return err
	}
	if s.ctx.Err() != nil {
		err = s.withMaxHold(&interlock.Error{Op: "commit", Name: r.Table, Kind: interlock.Definite, Err: context.Cause(s.ctx)})
		return err
	}
	sent = true
	err = tx.Commit(s.ctx)
	return err
}

// begin bounds the transaction, locks its rows, and opens s with the first lock.
func begin[K Key, T any](ctx context.Context, tx driver.Tx[T], r Rows, keys []K, s *scope) ([]K, error) {
	o, asked := s.options, boottime.Now()
	if err := tx.Bound(ctx, o.MaxHold, 0); err != nil {
		return nil, r.about(err)
	}
	locked, err := lock(ctx, tx, r, keys, func() (context.Context, error) {
		s.open(ctx, 1)
		return s.ctx, boundRest(s, tx)
	})
	if err == nil {
		s.open(ctx, len(locked))
	} else {
		err = s.late(err)
	}
	report.Now(o.Hooks.Locked, observe.RowsLocked{Table: r.Table, Asked: len(keys), Rows: len(locked), Wait: boottime.Now().Sub(asked), Err: err})
	return locked, err
}

// boundRest makes the server end waits for the other rows at MaxHold, shortly before the
// context ends; this keeps the connection usable.
func boundRest[T any](s *scope, tx driver.Tx[T]) error {
	rest := s.options.MaxHold - s.held()
	wait := max(rest-rest/10, time.Millisecond)
	s.bound = s.held() + wait - 2*time.Millisecond // servers count whole milliseconds
	return tx.Bound(s.ctx, rest, wait)
}

// A scope is the time during which rows are locked, from the first lock on.
type scope struct {
	table   string
	options Options
	rows    atomic.Int64
	since   boottime.Instant
	bound   time.Duration // of held, for the waits; 0 if none
	ctx     context.Context
	cancel  context.CancelFunc
	slow    *time.Timer
}

type scopeKey struct{}

// scopes counts the open scopes of this process.
var scopes atomic.Int64

// Open returns the number of open [Tx] scopes in this process, as a gauge.
func Open() int { return int(scopes.Load()) }

// Held returns the table whose rows are locked by the scope of ctx. Code that is about to wait
// for something else uses it to refuse.
func Held(ctx context.Context) (table string, ok bool) {
	s, ok := ctx.Value(scopeKey{}).(*scope)
	if !ok {
		return "", false
	}
	return s.table, true
}

// open starts MaxHold unless the scope is open already, and records the number of locked rows.
func (s *scope) open(ctx context.Context, rows int) {
	s.rows.Store(int64(rows))
	if s.ctx != nil {
		return
	}
	s.since = boottime.Now()
	s.ctx, s.cancel = context.WithTimeoutCause(context.WithValue(ctx, scopeKey{}, s), s.options.MaxHold, ErrMaxHold)
	s.slow = time.AfterFunc(s.options.WarnAfter, s.warn)
	scopes.Add(1)
}

func (s *scope) held() time.Duration { return boottime.Now().Sub(s.since) }

func (s *scope) warn() {
	report.Now(s.options.Hooks.Slow, observe.RowsSlow{Table: s.table, Rows: int(s.rows.Load()), Held: s.held(), Max: s.options.MaxHold})
}

func (s *scope) close(err error) {
	if s.ctx == nil {
		return
	}
	s.slow.Stop()
	s.cancel()
	scopes.Add(-1)
	report.Now(s.options.Hooks.Released, observe.RowsReleased{Table: s.table, Rows: int(s.rows.Load()), Held: s.held(), Err: err})
}

// late adds to err, from a wait for further rows, that MaxHold had passed. Nothing was done and
// fn was not called, so a retry is safe.
func (s *scope) late(err error) error {
	if s.ctx == nil || s.bound == 0 || s.held() < s.bound {
		return err
	}
	return &interlock.Error{Op: "lock rows", Name: s.table, Kind: interlock.Retryable,
		Err: fmt.Errorf("%w before all of them were locked: %w", ErrMaxHold, err)}
}

// withMaxHold adds to err that the scope exceeded MaxHold, if it did.
func (s *scope) withMaxHold(err error) error {
	if !errors.Is(context.Cause(s.ctx), ErrMaxHold) || errors.Is(err, ErrMaxHold) {
		return err
	}
	return &interlock.Error{Op: "run transaction", Name: s.table, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %w", ErrMaxHold, err)}
}
