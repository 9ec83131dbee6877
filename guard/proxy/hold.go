package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/wire"
)

// session is the transaction that holds a mark.
type session = driver.SQL

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
	idle  time.Duration                 // after which the database ends the session
	until atomic.Pointer[wire.Deadline] // counted from before the last statement was sent

	ctx    context.Context // ends when the session is known to have ended
	cancel context.CancelCauseFunc
	stop   chan struct{}
	ended  sync.WaitGroup
	once   sync.Once
}

// hold keeps tx alive until end is called. Only holding uses tx meanwhile. [fence.Tx] has bounded
// its idle time.
func hold(ctx context.Context, tx session, now func() time.Time) (*holding, error) {
	h := &holding{tx: tx, now: now, stop: make(chan struct{})}
	sent := now()
	var err error
	if h.idle, err = allowed(ctx, tx); err != nil {
		return nil, err
	}
	h.moved(sent)
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.ended.Go(func() { h.keep(ctx, min(time.Second, h.idle*3/8)) })
	return h, nil
}

// allowed returns the idle time that the database allows a session. It is that of [fence.Tx], or an earlier
// one of the user.
func allowed(ctx context.Context, tx session) (idle time.Duration, err error) {
	query := `select (extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000000)::bigint`
	if tx.Dialect() == driver.MariaDB {
		query = `select 1000000 * least(@@session.idle_transaction_timeout, @@session.idle_write_transaction_timeout)`
	}
	err = tx.Query(ctx, query, nil, func(scan func(...any) error) error { return scan((*int64)(&idle)) })
	return idle * time.Microsecond, err
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

// lanes let one caller at a time use a resource, in the order of arrival. A lane exists while
// it has callers.
type lanes struct {
	most int // maximum per lane
	mu   sync.Mutex
	busy map[string]*lane
}

type lane struct {
	turn chan struct{} // full while a caller has the turn
	in   int
}

// enter waits for the turn, until ctx ends.
func (l *lanes) enter(ctx context.Context, resource string) (leave func(), err error) {
	at, err := l.join(resource)
	if err != nil {
		return nil, err
	}
	select {
	case at.turn <- struct{}{}:
		return func() { <-at.turn; l.part(resource, at) }, nil
	case <-ctx.Done():
		l.part(resource, at)
		return nil, &interlock.Error{Op: "wait for turn", Name: resource, Kind: interlock.Definite, Err: context.Cause(ctx)}
	}
}

func (l *lanes) join(resource string) (*lane, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.busy[resource]
	if at == nil {
		at = &lane{turn: make(chan struct{}, 1)}
		l.busy[resource] = at
	}
	if at.in >= l.most {
		return nil, &interlock.Error{Op: "wait for turn", Name: resource, Kind: interlock.Retryable,
			Err: errors.New("too many calls wait already")}
	}
	at.in++
	return at, nil
}

func (l *lanes) part(resource string, at *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.in--; at.in == 0 {
		delete(l.busy, resource)
	}
}

// An Outcome is what the status of an answer means for its operation.
type Outcome int

const (
	// Unknown means that the operation may have been done. It stays in doubt, and is sent again
	// only with [Options.Repeat].
	Unknown Outcome = iota
	// Final means that the status is the operation's result. It is recorded permanently, and
	// the operation is not sent again: [DoneError].
	Final
	// NotDone means that the other side refused the request before it did anything. The
	// operation may be sent again, even without a key. If an earlier attempt is in doubt, it
	// stays in doubt.
	NotDone
)

// DefaultOutcome returns the outcome of a status, unless [Options.Statuses] overrides it:
//
//	200–299                                  Final
//	401, 403, 425, 429                       NotDone
//	408, 409                                 Unknown
//	400–499, except those above              Final
//	every other, such as 3xx and 5xx         Unknown
//
// 401 and 403 can end when credentials change; 425 and 429 ask for another attempt. 408 and 409
// leave the outcome open. Gateways send 408 when the server behind them is slow, and APIs send
// 409 while an earlier request with the same key is in progress.
func DefaultOutcome(status int) Outcome {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooEarly, http.StatusTooManyRequests:
		return NotDone
	case http.StatusRequestTimeout, http.StatusConflict:
		return Unknown
	}
	if status >= 200 && status < 300 || status >= 400 && status < 500 {
		return Final
	}
	return Unknown
}

// meaning returns the outcome of status under o.
func (o *Options) meaning(status int) Outcome {
	if m, ok := o.Statuses[status]; ok {
		return m
	}
	return DefaultOutcome(status)
}
