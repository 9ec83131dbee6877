package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// renew renews the lease until ctx ends or the lease is lost. The lease is counted from just
// before the last successful renewal was sent, by this process's monotonic clock. If the
// machine was suspended, this process may notice the expiry late; the store notices at once.
func (r *Request) renew(ctx context.Context) {
	s := r.store
	lease := s.options.Lease
	until := r.sent.Add(lease)
	for wait := until.Sub(s.now()) - lease*2/3; pause(ctx, wait) == nil; {
		sent := s.now()
		err := r.renewal(ctx, until)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			until = sent.Add(lease)
			wait = until.Sub(s.now()) - lease*2/3
			continue
		case errors.Is(err, interlock.ErrLost):
			r.lost(interlock.ErrLost)
			return
		case !s.now().Before(until):
			r.lost(interlock.ErrExpired)
			return
		}
		if hook := s.options.Hooks.Renewed; hook != nil {
			hook(observe.IdempotencyRenewed{Scope: r.id.Scope, Operation: r.id.Operation, Key: r.id.Key,
				Attempt: r.record.Attempt, Err: err})
		}
		wait = min(lease/10, until.Sub(s.now()))
	}
}

// renewal requests another lease, within the time of the current one.
func (r *Request) renewal(ctx context.Context, until time.Time) error {
	ctx, cancel := context.WithTimeoutCause(ctx, until.Sub(r.store.now()), interlock.ErrExpired)
	defer cancel()
	return r.store.records.Update(ctx, driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease})
}
