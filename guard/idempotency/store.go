package idempotency

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// What Options that are zero mean.
const (
	DefaultLease     = 30 * time.Second
	DefaultRetention = 48 * time.Hour
	DefaultMaxAnswer = 1 << 20
)

// Options of a [Store]; nil and the zero value work.
type Options struct {
	// Lease is how long an attempt keeps others out unless it is renewed, which is
	// done each third of it; 0 means [DefaultLease], otherwise 100 ms to an hour. A
	// retry after a crash waits for as long.
	Lease time.Duration
	// Retention is how long an answer is kept at least; 0 means [DefaultRetention],
	// otherwise a second or more. Once it is removed, which takes a [Reaper] but on
	// Redis, the key stands for a new request.
	Retention time.Duration
	// MaxAnswer is the longest body that is kept, in bytes; 0 means
	// [DefaultMaxAnswer]. Of a longer one the digest is kept, and a retry has a
	// [NotKeptError].
	MaxAnswer int
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Idempotency
}

func (o *Options) orDefault() (Options, error) {
	var options Options
	if o != nil {
		options = *o
	}
	if options.Lease == 0 {
		options.Lease = DefaultLease
	}
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if options.MaxAnswer == 0 {
		options.MaxAnswer = DefaultMaxAnswer
	}
	options.Hooks = options.Hooks.WithDefaults()
	switch {
	case options.Lease < 100*time.Millisecond || options.Lease > time.Hour:
		return options, failure.Bug("open store", "", "a lease of %v is impossible: it must be 100 ms to an hour", options.Lease)
	case options.Retention < time.Second:
		return options, failure.Bug("open store", "", "a retention of %v is impossible: it must be a second or more", options.Retention)
	case options.MaxAnswer < 0:
		return options, failure.Bug("open store", "", "an answer of %d bytes is impossible", options.MaxAnswer)
	}
	return options, nil
}

// A Store lets each request take effect once, and answers its retries with the
// same answer. It is safe for concurrent use.
type Store struct {
	records driver.Idempotency
	options Options
	opened  *opened // nil if the records are the caller's

	// Where time and chance come from.
	now    func() time.Time
	random func() float64
	owner  func() string
}

// New makes a store on records: an [SQL], or what a driver of a key-value store
// provides.
func New(records driver.Idempotency, o *Options) (*Store, error) {
	options, err := o.orDefault()
	if err != nil {
		return nil, err
	}
	if records == nil {
		return nil, failure.Bug("open store", "", "it needs records to work on")
	}
	return &Store{records: records, options: options, now: time.Now, random: mathrand.Float64, owner: rand.Text}, nil
}

// A Func carries a request out. Its context ends with that of Do, and with the
// attempt's lease: with [interlock.ErrLost] once another attempt has begun, or
// [interlock.ErrExpired] if nothing is known. [From] finds the request in it.
type Func func(ctx context.Context) (Response, error)

// Do carries a request out by fn, unless that was done: then it returns the kept
// answer, Replayed. An answer of fn is returned when it is durable, and not before.
//
// If fn returns an error or panics, the request is unfinished: a retry is let in at
// once, and goes on after the last phase that was done; see [Phase]. Otherwise Do
// returns
//
//   - an [*InFlightError]: another attempt is at work, and fn was not run;
//   - a [*MismatchError]: the key stands for another request, and fn was not run;
//   - a [*NotKeptError]: it was done, with an answer too large to be kept;
//   - an [interlock.ErrLost]: fn has run, but another attempt has begun meanwhile,
//     whose answer is the one that counts. Phases of this attempt that were not done
//     by then are not done;
//   - an error that is Uncertain: the answer may be kept or not. A retry will tell;
//   - any other error of the store: fn was not run.
//
// The end of ctx reaches fn, but not what has to be recorded after it.
func (s *Store) Do(ctx context.Context, call Call, fn Func) (Response, error) {
	began := s.now()
	event := observe.IdempotencyAnswered{Scope: call.Scope, Operation: call.Operation, Key: call.Key}
	response, err := s.do(ctx, call, fn, &event)
	event.Replayed, event.Err, event.Took = response.Replayed, err, s.now().Sub(began)
	if hook := s.options.Hooks.Answered; hook != nil {
		hook(event)
	}
	return response, err
}

func (s *Store) do(ctx context.Context, call Call, fn Func, event *observe.IdempotencyAnswered) (Response, error) {
	if fn == nil {
		return Response{}, failure.Bug("claim request", call.Key, "there is no function to carry it out")
	}
	if err := call.validate(); err != nil {
		return Response{}, err
	}
	c := driver.IdempotencyClaim{ID: call.id(), Fingerprint: call.Fingerprint, Owner: s.owner(),
		Lease: s.options.Lease, Input: call.Input}
	r, outcome, err := s.await(ctx, c, call.Wait)
	switch {
	case err != nil:
		return Response{}, err
	case outcome == inFlight:
		return Response{}, &InFlightError{Key: call.Key, Attempt: r.record.Attempt, Remaining: min(r.record.Remaining, s.options.Lease)}
	case outcome == mismatch:
		return Response{}, &MismatchError{Key: call.Key}
	case outcome == answered:
		event.Kept = true
		return replay(call.Key, r.record.Answer)
	}
	event.Attempt = r.record.Attempt
	response, kept, err := s.run(ctx, r, fn)
	event.Kept = kept
	return response, err
}

// cleanup bounds a claim, and what has to be recorded when nobody waits for it any
// more.
const cleanup = 10 * time.Second

// Attempts and waits of a step that failed, and may be tried again.
const attempts = 5

var retries = backoff.Policy{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// record does a step that has to be done although ctx has ended, and converges.
func (s *Store) record(ctx context.Context, u driver.IdempotencyUpdate) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	return s.persist(ctx, func(int) (bool, error) {
		err := s.records.Update(ctx, u)
		return again(err) || errors.Is(err, interlock.ErrUncertain), err
	})
}

// persist tries until it is not to be tried again, or too often.
func (s *Store) persist(ctx context.Context, try func(n int) (again bool, err error)) error {
	for n := 1; ; n++ {
		repeat, err := try(n)
		if err == nil || !repeat || n == attempts || ctx.Err() != nil {
			return err
		}
		if pause(ctx, retries.Delay(n, s.random())) != nil {
			return err
		}
	}
}

// again reports whether err is one of ours that says so. What user code returns
// is of no kind of ours, and not tried again.
func again(err error) bool {
	var e *interlock.Error
	return errors.As(err, &e) && e.Kind == interlock.Retryable
}

// pause waits for so long, or for the end of ctx.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
