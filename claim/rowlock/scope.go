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

// ErrMaxHold is the cause with which a scope's context ends when its rows were
// locked for longer than Options.MaxHold.
var ErrMaxHold = errors.New("rows were locked for too long")

// Tx runs fn in a transaction of db that has locked the rows with the given
// keys, as [Lock] says, and commits it if fn returns nil within o.MaxHold. fn
// must not end the transaction, and should not wait for anything but the
// database: others wait for these rows.
//
// It returns nil if the transaction was committed. Otherwise the error is that
// of Lock; or fn's own, after a rollback; or one with [ErrMaxHold] in its chain,
// after a rollback; or, if COMMIT was sent and its answer was lost, one of kind
// Uncertain. A Retryable error did nothing and Tx may be called again; it is not
// retried here. A rollback ignores the cancellation of ctx and has a bound of its
// own; it is also done if fn panics.
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
	locked, err := begin(ctx, tx, r, keys, options)
	if err != nil {
		return err
	}
	s := open(ctx, r.Table, len(locked), options)
	defer func() { s.close(err) }()
	if err = fn(s.ctx, tx.Native(), locked); err != nil {
		err = s.blame(tx.Classify(err))
		return err
	}
	if s.ctx.Err() != nil {
		err = s.blame(&interlock.Error{Op: "commit", Name: r.Table, Kind: interlock.Definite, Err: context.Cause(s.ctx)})
		return err
	}
	sent = true
	err = tx.Commit(s.ctx)
	return err
}

// begin bounds the transaction and locks its rows.
func begin[K Key, T any](ctx context.Context, tx driver.Tx[T], r Rows, keys []K, o Options) ([]K, error) {
	asked := boottime.Now()
	if err := tx.Bound(ctx, o.MaxHold, 0); err != nil {
		return nil, r.about(err)
	}
	locked, err := Lock(ctx, tx, r, keys...)
	if f := o.Hooks.Locked; f != nil {
		f(observe.RowsLocked{Table: r.Table, Asked: len(keys), Rows: len(locked), Wait: boottime.Now().Sub(asked), Err: err})
	}
	return locked, err
}

// A scope is the time during which rows are locked.
type scope struct {
	table   string
	rows    int
	since   boottime.Instant
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	slow    *time.Timer
}

type scopeKey struct{}

// scopes counts those that are open in this process.
var scopes atomic.Int64

// Open is how many scopes of [Tx] are open in this process: a gauge.
func Open() int { return int(scopes.Load()) }

// Held reports the table whose rows are locked by the scope that ctx descends
// from. This is how code that is about to wait for something else can refuse to.
func Held(ctx context.Context) (table string, ok bool) {
	s, ok := ctx.Value(scopeKey{}).(*scope)
	if !ok {
		return "", false
	}
	return s.table, true
}

func open(ctx context.Context, table string, rows int, o Options) *scope {
	s := &scope{table: table, rows: rows, since: boottime.Now(), options: o}
	s.ctx, s.cancel = context.WithTimeoutCause(context.WithValue(ctx, scopeKey{}, s), o.MaxHold, ErrMaxHold)
	s.slow = time.AfterFunc(o.WarnAfter, s.warn)
	scopes.Add(1)
	return s
}

func (s *scope) held() time.Duration { return boottime.Now().Sub(s.since) }

func (s *scope) warn() {
	if f := s.options.Hooks.Slow; f != nil {
		f(observe.RowsSlow{Table: s.table, Rows: s.rows, Held: s.held(), Max: s.options.MaxHold})
	}
}

func (s *scope) close(err error) {
	s.slow.Stop()
	s.cancel()
	scopes.Add(-1)
	if f := s.options.Hooks.Released; f != nil {
		f(observe.RowsReleased{Table: s.table, Rows: s.rows, Held: s.held(), Err: err})
	}
}

// blame adds to err that the scope lasted too long, if it did.
func (s *scope) blame(err error) error {
	if !errors.Is(context.Cause(s.ctx), ErrMaxHold) || errors.Is(err, ErrMaxHold) {
		return err
	}
	return &interlock.Error{Op: "run transaction", Name: s.table, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %w", ErrMaxHold, err)}
}
