package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

// outcome is what came of a claim.
type outcome int

const (
	ours     outcome = iota // to be carried out, by this attempt
	answered                // it was carried out before
	inFlight                // another attempt is at work
	mismatch                // the key stands for another request
)

// classify tells what came of a claim by the record that it left. That the key stands
// for another request comes first: its answer is nobody else's business.
func classify(c driver.IdempotencyClaim, r driver.IdempotencyRecord) outcome {
	switch {
	case r.Fingerprint != c.Fingerprint:
		return mismatch
	case r.Finished:
		return answered
	case r.Owner == c.Owner:
		return ours
	}
	return inFlight
}

// looks is how often an attempt in flight is looked at by those who wait for it.
var looks = backoff.Policy{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// await claims until the request is not in flight, for at most wait. The request
// that it returns is locked by nobody and not begun.
func (s *Store) await(ctx context.Context, c driver.IdempotencyClaim, wait time.Duration) (*Request, outcome, error) {
	until := s.now().Add(wait)
	for n := 1; ; n++ {
		r, err := s.claim(ctx, c)
		if errors.Is(err, interlock.ErrUncertain) {
			_ = s.give(ctx, r, false) // nobody is at work; if this fails, the lease lapses
		}
		if err != nil {
			return nil, 0, err
		}
		outcome := classify(c, r.record)
		delay := looks.Delay(n, s.random())
		if left := until.Sub(s.now()); outcome != inFlight || left <= 0 || pause(ctx, min(left, delay)) != nil {
			return r, outcome, nil
		}
	}
}

// claim asks the store, again if it has to, always as the same owner.
func (s *Store) claim(ctx context.Context, c driver.IdempotencyClaim) (*Request, error) {
	r := &Request{store: s, id: c.ID, owner: c.Owner, busy: make(chan struct{}, 1)}
	err := s.persist(ctx, func(int) (bool, error) {
		r.sent = s.now()
		ctx, cancel := context.WithTimeout(ctx, cleanup) // also if the caller would wait for ever
		defer cancel()
		var err error
		r.record, err = s.records.Claim(ctx, c)
		return again(err) || errors.Is(err, interlock.ErrUncertain), err
	})
	if err != nil {
		return r, failure.About("claim request", c.ID.Key, err)
	}
	r.points, err = parsePoints(r.record.Points)
	return r, err
}

// give lets the next attempt in: it finds the record, or nothing.
func (s *Store) give(ctx context.Context, r *Request, forget bool) error {
	return s.record(ctx, driver.IdempotencyUpdate{ID: r.id, Owner: r.owner, Forget: forget})
}

// look asks what the record is now, after an outcome that is not known. It waits
// for a transaction that is still under way.
func (s *Store) look(ctx context.Context, r *Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	now, err := s.claim(ctx, driver.IdempotencyClaim{ID: r.id, Owner: r.owner, Fingerprint: r.record.Fingerprint,
		Lease: s.options.Lease})
	switch {
	case err != nil:
		return err
	case now.record.Owner != r.owner || now.record.Attempt != r.record.Attempt:
		return &interlock.Error{Op: "look at request", Name: r.id.Key, Kind: interlock.Definite, Err: interlock.ErrLost}
	}
	r.points, r.record.Finished, r.record.Answer = now.points, now.record.Finished, now.record.Answer
	return nil
}
