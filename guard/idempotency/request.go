package idempotency

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// A Request is one attempt at carrying a request out. It is found by [From] in the
// context of a [Func], and is of no use after that has returned. It is safe for
// concurrent use.
type Request struct {
	store    *Store
	id       driver.IdempotencyID
	owner    string
	sent     time.Time // before the claim left
	allow    func(http.Header) http.Header
	declined atomic.Bool

	ctx    context.Context // ends with the lease
	cancel context.CancelCauseFunc
	losing sync.Once

	busy   chan struct{} // has one while a phase runs, which has what follows to itself
	record driver.IdempotencyRecord
	points points
	last   *Response // of LastPhase
	over   bool      // the function has returned
}

type requestKey struct{}

// From is the request whose function ctx was made for; nil if there is none.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Attempt is the number of this attempt, from 1. Those before it were not
// finished, and may have left effects outside of phases.
func (r *Request) Attempt() int { return r.record.Attempt }

// Key is the key that was chosen by who asks.
func (r *Request) Key() string { return r.id.Key }

// Scope is whose request it is.
func (r *Request) Scope() string { return r.id.Scope }

// Input is what the first attempt kept. It must not be changed.
func (r *Request) Input() []byte { return r.record.Input }

// Decline keeps the answer from being kept: the key is as good as unused, and the
// next request under it is carried out. It is for what was refused before it had
// any effect. If a phase was done, the request is left unfinished instead.
func (r *Request) Decline() { r.declined.Store(true) }

// answered tells whether the last phase has recorded the answer.
func (r *Request) answered() bool {
	defer r.wait()()
	return r.last != nil
}

// wait waits for a phase that is under way, and keeps others from it until leave.
func (r *Request) wait() (leave func()) {
	r.busy <- struct{}{}
	return func() { <-r.busy }
}

// turn is wait that gives up at the end of ctx, or of the attempt.
func (r *Request) turn(ctx context.Context) (leave func(), err error) {
	leave = func() { <-r.busy }
	select {
	case r.busy <- struct{}{}:
		return leave, nil
	default:
	}
	select {
	case r.busy <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
}

// run carries r out and records its outcome.
func (s *Store) run(ctx context.Context, r *Request, fn Func) (response Response, kept bool, err error) {
	inside, end := r.begin(ctx)
	returned := false
	defer func() {
		if !returned { // a panic, which goes on
			end()
			_ = s.give(ctx, r, false)
		}
	}()
	response, err = fn(inside)
	returned = true
	end()
	switch {
	case r.answered():
		return *r.last, true, nil
	case err != nil:
		// If the release fails, the lease lapses.
		_ = s.give(ctx, r, false)
		return Response{}, false, err
	case r.declined.Load():
		_ = s.give(ctx, r, len(r.points) == 0)
		return response, false, nil
	}
	if err := s.record(ctx, r.finish(response)); err != nil {
		return Response{}, false, failure.About("finish request", r.id.Key, err)
	}
	return response, true, nil
}

// finish is the step that keeps an answer.
func (r *Request) finish(response Response) driver.IdempotencyUpdate {
	if r.allow != nil {
		response.Header = r.allow(response.Header)
	}
	return driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease,
		Answer: response.keep(r.store.options.MaxAnswer), Keep: r.store.options.Retention}
}

// begin renews the lease until end is called, which waits for a phase that is
// still under way, and for the renewal.
func (r *Request) begin(ctx context.Context) (inside context.Context, end func()) {
	inside, r.cancel = context.WithCancelCause(context.WithValue(ctx, requestKey{}, r))
	r.ctx = inside
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { r.renew(renewing) })
	return inside, func() {
		r.cancel(interlock.ErrReleased)
		leave := r.wait()
		r.over = true
		leave()
		stop()
		renewal.Wait()
	}
}

// lost ends the attempt's context, and tells, once.
func (r *Request) lost(cause error) {
	r.losing.Do(func() {
		r.cancel(cause)
		if hook := r.store.options.Hooks.Lost; hook != nil {
			hook(observe.IdempotencyLost{Scope: r.id.Scope, Operation: r.id.Operation, Key: r.id.Key,
				Attempt: r.record.Attempt, Cause: cause})
		}
	})
}
