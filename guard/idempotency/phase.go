package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// Phase runs fn in a transaction that also records the phase and its result. Both are committed
// together or not at all. The result must survive JSON. If an earlier attempt has committed the
// phase, fn does not run, and Phase returns the recorded result. The phases of a request have
// different names, 1 to 100 bytes of UTF-8 without NUL each; see [MaxPoints]. They run one at a time.
//
// ctx is the context of the request's [Func], or descends from it; s holds the records of the
// request's [Store]. fn must not end the transaction. fn may run up to five times, if the
// database requires it. So fn must do nothing outside of the transaction that must happen once.
// The server ends a transaction that is idle for two thirds of the lease.
//
// An error of fn is returned unchanged, after a rollback, except a driver's of unknown outcome: it
// becomes Retryable, because nothing was committed. An [interlock.ErrLost] means that another attempt
// has begun, and that nothing was done.
//
// The design follows the atomic phases and recovery points that Brandur Leach described for
// Postgres.
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

// LastPhase is a [Phase] that also finishes the request: it commits the effect and the answer
// together, which saves a commit. The result of the request's function is then ignored.
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

// Step is a phase without a transaction: it runs fn, and then records the phase and its result.
// After a crash in between, the next attempt runs fn again. So fn must be safe to repeat; for
// example, pass the request's key to the called system. Step works on every store.
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

// reach returns the result of a phase, and runs the phase if it is not done.
func reach[R any](ctx context.Context, on driver.Idempotency, name string, run func(context.Context, *Request) error) (R, error) {
	var none R
	if err := driver.CheckName("run phase", "a phase", name, maxPhase); err != nil {
		return none, err
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
		return nil, nil, failure.Bug(op, name, "it is called inside another phase")
	case on != nil && on != r.store.records:
		return nil, nil, failure.Bug(op, name, "the request is recorded elsewhere")
	}
	leave, err = r.turn(ctx)
	if err != nil {
		return nil, nil, &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: err}
	}
	switch err = r.noted(r.settle(ctx)); {
	case r.over || r.last != nil:
		err = failure.Bug(op, name, "the request is over")
	case err != nil && !errors.Is(err, interlock.ErrLost): // name may be the phase in doubt
		err = &interlock.Error{Op: op, Name: name, Kind: interlock.Uncertain, Err: err}
	case err == nil && r.ctx.Err() != nil:
		err = &interlock.Error{Op: op, Name: name, Kind: interlock.Definite, Err: context.Cause(r.ctx)}
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return r, leave, nil
}

// inside returns ctx for a phase; it also ends with the lease.
func (r *Request) inside(ctx context.Context) (context.Context, func()) {
	return join.Context(context.WithValue(ctx, phaseKey{}, r), r.ctx)
}

// step returns the update that records recovery points.
func (r *Request) step(points []byte) driver.IdempotencyUpdate {
	return driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Lease: r.store.options.Lease, Points: points}
}

// noted ends the attempt if err means that the attempt is lost.
func (r *Request) noted(err error) error {
	if errors.Is(err, interlock.ErrLost) {
		r.lost(interlock.ErrLost)
	}
	return err
}

// MaxPoints is the maximum total size of the names and results of a request's phases, in bytes
// of JSON.
const MaxPoints = 64 << 10

// maxPhase is the maximum length of a phase's name, in bytes.
const maxPhase = 100

// points are the completed phases, in order.
type points []point

type point struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"`
}

func parsePoints(text []byte) (p points, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, &interlock.Error{Op: "read recovery points", Kind: interlock.Definite, Err: fmt.Errorf("the record is damaged: %w", err)}
	}
	return p, nil
}

// find returns the result of a completed phase.
func (p points) find(name string) (result json.RawMessage, done bool) {
	if i := slices.IndexFunc(p, func(q point) bool { return q.Name == name }); i >= 0 {
		return p[i].Result, true
	}
	return nil, false
}

// with returns p with another phase, and its encoded form.
func (p points) with(name string, result any) (points, []byte, error) {
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, nil, failure.Bug("keep result of phase", name, "%w", err)
	}
	p = append(slices.Clone(p), point{name, raw})
	text, err := json.Marshal(p)
	if err == nil && len(text) > MaxPoints {
		err = fmt.Errorf("all results together have %d bytes, at most %d are allowed", len(text), MaxPoints)
	}
	if err != nil {
		return nil, nil, &interlock.Error{Op: "keep result of phase", Name: name, Kind: interlock.Definite, Err: err}
	}
	return p, text, nil
}

// result decodes the result of a phase.
func result[R any](name string, raw json.RawMessage) (r R, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, &interlock.Error{Op: "read result of phase", Name: name, Kind: interlock.Definite,
			Err: fmt.Errorf("it was stored with another type: %w", err)}
	}
	return r, nil
}
