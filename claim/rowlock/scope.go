package rowlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/observe"
)

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
//   - the error of fn, after a rollback
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
		err = s.withMaxHold(tx.Classify(err))
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
	if f := o.Hooks.Locked; f != nil {
		f(observe.RowsLocked{Table: r.Table, Asked: len(keys), Rows: len(locked), Wait: boottime.Now().Sub(asked), Err: err})
	}
	return locked, err
}

// boundRest makes the server end waits for the other rows at MaxHold, shortly before the
// context ends; this keeps the connection usable.
func boundRest[T any](s *scope, tx driver.Tx[T]) error {
	rest := s.options.MaxHold - s.held()
	wait := max(rest*9/10, time.Millisecond)
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
	if f := s.options.Hooks.Slow; f != nil {
		f(observe.RowsSlow{Table: s.table, Rows: int(s.rows.Load()), Held: s.held(), Max: s.options.MaxHold})
	}
}

func (s *scope) close(err error) {
	if s.ctx == nil {
		return
	}
	s.slow.Stop()
	s.cancel()
	scopes.Add(-1)
	if f := s.options.Hooks.Released; f != nil {
		f(observe.RowsReleased{Table: s.table, Rows: int(s.rows.Load()), Held: s.held(), Err: err})
	}
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
