package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/wire"
)

// session is the transaction that holds a mark.
type session interface {
	driver.SQL
	Bound(ctx context.Context, idle, statement time.Duration) error
}

// lifted begins transactions whose native type is session, for any T.
type lifted[T any] struct{ db driver.Beginner[T] }

func (l lifted[T]) Begin(ctx context.Context) (driver.Tx[session], error) {
	tx, err := l.db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return liftedTx[T]{tx}, nil
}

type liftedTx[T any] struct{ driver.Tx[T] }

func (t liftedTx[T]) Native() session { return t.Tx }

// errMarkLost is the cause with which a call ends if its session ended.
var errMarkLost = errors.New("the session that held the mark has ended")

// holding keeps an idle session alive, and knows until when the database cannot have ended it.
type holding struct {
	tx    session
	now   func() time.Time
	idle  time.Duration                 // the minimum idle time that the database allows
	until atomic.Pointer[wire.Deadline] // counted from before the last statement was sent

	ctx    context.Context // ends when the session is known to have ended
	cancel context.CancelCauseFunc
	stop   chan struct{}
	ended  sync.WaitGroup
	once   sync.Once
}

// hold bounds the idle time of tx, and keeps tx alive until end is called. Only holding uses tx
// meanwhile.
func hold(ctx context.Context, tx session, c interlock.Claim, now func() time.Time) (*holding, error) {
	left := c.Remaining()
	h := &holding{tx: tx, now: now, idle: allowed(tx.Dialect(), left*2/3), stop: make(chan struct{})}
	sent := now()
	if err := tx.Bound(ctx, left*2/3, left); err != nil {
		return nil, err
	}
	h.moved(sent)
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.ended.Go(func() { h.keep(ctx, min(time.Second, left/4)) })
	return h, nil
}

// allowed returns the idle time that a database allows a session that requested idle. MariaDB
// counts whole seconds, and at least one.
func allowed(d driver.Dialect, idle time.Duration) time.Duration {
	if d == driver.MariaDB {
		return max(time.Second, idle.Truncate(time.Second))
	}
	return idle.Truncate(time.Millisecond)
}

// moved records that a statement was sent, and answered, after sent.
func (h *holding) moved(sent time.Time) {
	until := wire.After(sent, h.idle)
	h.until.Store(&until)
}

// keep sends a statement each period.
func (h *holding) keep(ctx context.Context, period time.Duration) {
	tick := time.NewTicker(max(period, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sent := h.now()
		if err := h.move(ctx); err != nil {
			h.until.Store(&wire.Deadline{})
			h.cancel(errors.Join(errMarkLost, err))
			return
		}
		h.moved(sent)
	}
}

// move sends a statement. It waits for the reply only while the session certainly lasts,
// because a connection can be silently dead.
func (h *holding) move(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.until.Load().Remaining(h.now()))
	defer cancel()
	_, err := h.tx.Exec(ctx, "select 1")
	return err
}

// lasts returns an error once the database may have ended the session.
func (h *holding) lasts(resource string) error {
	if h.until.Load().Remaining(h.now()) > 0 {
		return nil
	}
	return &interlock.Error{Op: "make call", Name: resource, Kind: interlock.Retryable, Err: errMarkLost}
}

// end stops using tx.
func (h *holding) end() {
	h.once.Do(func() { close(h.stop) })
	h.ended.Wait()
	h.cancel(nil)
}
