package idempotency

import (
	"context"
	"errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// Phase runs fn in a transaction that also records that the phase is done, with
// its result, which must survive JSON: all of it is committed, or nothing. If an
// attempt before has done it, fn is not run, and its result is returned. The names
// of a request's phases must differ, 1 to 100 bytes each; see [MaxPoints]. They are run
// one at a time.
//
// ctx is that of the request's [Func], or comes from it; s is what the request's
// [Store] stands on. fn must not end the transaction, nor do anything outside of it
// that must not be done twice: fn is run again if the database asks for that, up to
// five times. The server ends a transaction from which it hears nothing for two thirds
// of the lease.
//
// An error of fn is returned as it is, after a rollback. An [interlock.ErrLost]
// says that another attempt has begun, and that nothing was done.
//
// The idea is that of atomic phases and recovery points as Brandur Leach described
// them for Postgres.
func Phase[R, T any](ctx context.Context, s *SQL[T], name string, fn func(ctx context.Context, tx T) (R, error)) (R, error) {
	return reach[R](ctx, s, name, func(ctx context.Context, r *Request) error {
		return s.commit(ctx, r, name, func(ctx context.Context, tx driver.Tx[T]) (driver.IdempotencyUpdate, func(), error) {
			value, err := fn(ctx, tx.Native())
			if err != nil {
				return driver.IdempotencyUpdate{}, nil, tx.Classify(err)
			}
			all, text, err := r.points.with(name, value)
			return r.step(text), func() { r.points = all }, err
		})
	})
}

// LastPhase is a [Phase] that also finishes the request: its effect and the answer
// are committed together, which spares a commit. The function of the request has
// nothing more to do then: whatever it returns, this is the answer.
func LastPhase[T any](ctx context.Context, s *SQL[T], fn func(ctx context.Context, tx T) (Response, error)) (Response, error) {
	const name = "the last phase"
	r, leave, err := enter(ctx, s, name)
	if err != nil {
		return Response{}, err
	}
	defer leave()
	inside, done := r.inside(ctx)
	defer done()
	err = s.commit(inside, r, "", func(ctx context.Context, tx driver.Tx[T]) (driver.IdempotencyUpdate, func(), error) {
		response, err := fn(ctx, tx.Native())
		return r.finish(response), func() { r.last = &response }, tx.Classify(err)
	})
	if err != nil {
		return Response{}, err
	}
	return *r.last, nil
}

// Step is a phase without a transaction: it runs fn, and then records that it is
// done, with its result. A crash in between leaves an effect of which nothing is
// recorded, and fn is run again by the next attempt. So fn must be safe to repeat:
// give the request's key to whom it calls, for instance. It works on every store.
func Step[R any](ctx context.Context, name string, fn func(ctx context.Context) (R, error)) (R, error) {
	return reach[R](ctx, nil, name, func(ctx context.Context, r *Request) error {
		value, err := fn(ctx)
		if err != nil {
			return err
		}
		all, text, err := r.points.with(name, value)
		if err != nil {
			return err
		}
		if err := r.store.record(ctx, r.step(text)); err != nil {
			return r.noted(failure.About("record phase", name, err))
		}
		r.points = all
		return nil
	})
}

// reach gives the result of a phase, which is run if it is not done.
func reach[R any](ctx context.Context, on driver.Idempotency, name string, run func(context.Context, *Request) error) (R, error) {
	var none R
	if name == "" || len(name) > maxPhase {
		return none, failure.Bug("run phase", name, "%w: it has 1 to %d bytes", interlock.ErrName, maxPhase)
	}
	r, leave, err := enter(ctx, on, name)
	if err != nil {
		return none, err
	}
	defer leave()
	if _, done := r.points.find(name); !done {
		inside, done := r.inside(ctx)
		defer done()
		if err := run(inside, r); err != nil {
			return none, err
		}
	}
	raw, _ := r.points.find(name)
	return result[R](name, raw)
}

type phaseKey struct{}

// enter locks the request of ctx for a phase.
func enter(ctx context.Context, on driver.Idempotency, name string) (r *Request, leave func(), err error) {
	const op = "run phase"
	r = From(ctx)
	switch {
	case r == nil:
		return nil, nil, failure.Bug(op, name, "the context is not that of a request")
	case ctx.Value(phaseKey{}) == r:
		return nil, nil, failure.Bug(op, name, "it stands in another phase")
	case on != nil && on != r.store.records:
		return nil, nil, failure.Bug(op, name, "the request is recorded elsewhere")
	}
	leave, err = r.turn(ctx)
	if err != nil {
		return nil, nil, &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: err}
	}
	switch {
	case r.over || r.last != nil:
		err = failure.Bug(op, name, "the request is over")
	case r.ctx.Err() != nil:
		err = &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: context.Cause(r.ctx)}
	default:
		return r, leave, nil
	}
	leave()
	return nil, nil, err
}

// inside is ctx for a phase, which ends with the lease whatever ctx is made of.
func (r *Request) inside(ctx context.Context) (context.Context, func()) {
	return join.Context(context.WithValue(ctx, phaseKey{}, r), r.ctx)
}

// step is one that reaches recovery points.
func (r *Request) step(points []byte) driver.IdempotencyUpdate {
	return driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease, Points: points}
}

// noted ends the attempt if err says that it is lost.
func (r *Request) noted(err error) error {
	if errors.Is(err, interlock.ErrLost) {
		r.lost(interlock.ErrLost)
	}
	return err
}
