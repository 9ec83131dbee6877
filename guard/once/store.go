package once

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultLease is the default of BestEffortOptions.Lease.
const DefaultLease = time.Minute

// BestEffortOptions configure a [BestEffort]; nil and the zero value are valid.
type BestEffortOptions struct {
	// Lease is the maximum duration of an effect; 0 means [DefaultLease]. After it the context
	// of the effect ends, and another delivery may begin the effect.
	Lease time.Duration
	// Retention is how long the record of a processed message is kept, as for an Inbox; 0 means
	// [DefaultRetention].
	Retention time.Duration
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Once
}

// A BestEffort records messages in a store other than that of their effects, such as Redis
// beside a mail server. Its promise is weaker than an [Inbox]'s: the effect happens once, with
// these exceptions:
//
//   - If the process crashes or the store is unreachable between the effect and its record, the
//     effect happens again after the lease.
//   - If the effect outlasts the lease, another delivery has the effect too.
//   - If the store loses a record, the effect may happen again.
//
// Effects must tolerate this, or pass the message's ID to the system that executes them.
//
// It is safe for concurrent use. It sends claims and records whose reply is lost again, a few
// times.
type BestEffort struct {
	once     driver.Once
	consumer string
	options  BestEffortOptions
	now      func() boottime.Instant // boottime.Now, except in tests
}

// NewBestEffort returns a BestEffort that records in once, which a driver package provides, for
// a consumer, which is named as in [Inbox]. It sends nothing. An invalid name or negative time
// is a Bug.
func NewBestEffort(once driver.Once, consumer string, o *BestEffortOptions) (*BestEffort, error) {
	if once == nil {
		return nil, failure.Bug("open store", consumer, "a driver is required")
	}
	if err := validateName("consumer", consumer); err != nil {
		return nil, err
	}
	s := &BestEffort{once: once, consumer: consumer, now: boottime.Now}
	s.options = *cmp.Or(o, &BestEffortOptions{})
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&s.options.Lease, DefaultLease}, {&s.options.Retention, DefaultRetention}} {
		*d.value = cmp.Or(*d.value, d.standard)
		if *d.value < time.Millisecond || *d.value > driver.MaxKeep {
			return nil, failure.Bug("open store", consumer, "%v is not between a millisecond and %v", *d.value, driver.MaxKeep)
		}
	}
	return s, nil
}

// Once claims m, runs fn, which has the effect, and records that it did. It returns [Done];
// [Duplicate] if that was recorded before; [Mismatched] and a [MismatchError]; or [Undone] and:
//
//   - an [interlock.HeldError], Retryable: another delivery of m is running. Let it be
//     delivered again, after the lease at the latest
//   - a Retryable error: the claim came too late for fn to begin, because ctx or the lease had
//     ended. The claim is released
//   - fn's own error. The claim is released, so that m can be delivered again at once
//   - an Uncertain error: the store did not confirm the claim and fn did not run, or it did not
//     confirm the record and fn did run
//
// A message with a sequence number is a Bug: a store has no sequences. Once releases claims and
// records effects even after ctx has ended, for at most five seconds each.
func (s *BestEffort) Once(ctx context.Context, m Message, fn func(ctx context.Context) error) (Outcome, error) {
	d, err := s.admit(m, fn != nil)
	if err != nil {
		return Undone, err
	}
	outcome, until, err := s.claim(ctx, d)
	if outcome != Done || err != nil {
		report(s.options.Hooks, s.consumer, m, outcome, err)
		return outcome, err
	}
	return s.run(ctx, d, until, fn)
}

func (s *BestEffort) admit(m Message, effect bool) (driver.Delivery, error) {
	d := driver.Delivery{Consumer: s.consumer, ID: m.ID, Hash: m.hash(), Owner: crand.Text()}
	switch {
	case !effect:
		return d, failure.Bug("receive", m.name(), "a function for the effect is required")
	case m.Seq != 0:
		return d, failure.Bug("receive", m.name(), "it has a sequence number, which a store does not support")
	}
	return d, m.check()
}

// claim returns Done if the effect may run, until a time. After an error it leaves no claim.
func (s *BestEffort) claim(ctx context.Context, d driver.Delivery) (outcome Outcome, until boottime.Instant, err error) {
	var found driver.Claimed
	unclear := false // a claim may have been stored
	err = s.retry(ctx, func() (err error) {
		until = s.now().Add(s.options.Lease)
		found, err = s.once.Claim(ctx, d, s.options.Lease)
		unclear = unclear || errors.Is(err, interlock.ErrUncertain)
		return err
	})
	switch {
	case err != nil:
		if unclear {
			s.forget(ctx, d)
		}
		return Undone, until, failure.About("receive", d.ID, err)
	case found == driver.ClaimedDone:
		return Duplicate, until, nil
	case found == driver.ClaimedOther:
		return Mismatched, until, &MismatchError{Consumer: s.consumer, Message: d.ID}
	}
	return Done, until, nil
}

// storeTimeout bounds what is done after the effect.
const storeTimeout = 5 * time.Second

// run runs the effect, and then records it or releases the claim.
func (s *BestEffort) run(ctx context.Context, d driver.Delivery, until boottime.Instant, fn func(context.Context) error) (Outcome, error) {
	made := false
	defer func() {
		if !made {
			s.forget(ctx, d)
		}
	}()
	if err := s.within(ctx, d, until, fn); err != nil {
		return Undone, err
	}
	made = true
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := s.retry(after, func() error { return s.once.Done(after, d, s.options.Retention) })
	if err != nil {
		return Undone, &interlock.Error{Op: "receive", Name: d.ID, Kind: interlock.Uncertain,
			Err: fmt.Errorf("its effect happened but was not recorded, so it may be repeated: %w", err)}
	}
	return Done, nil
}

// forget ends a claim under which no effect was made, as far as is known. If it fails, the lease ends by itself.
func (s *BestEffort) forget(ctx context.Context, d driver.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	_ = s.once.Forget(ctx, d)
}

// within runs the effect while the lease lasts. The lease also passes while the machine is suspended, but
// the context of an effect that has begun ends only that much later.
func (s *BestEffort) within(ctx context.Context, d driver.Delivery, until boottime.Instant, fn func(context.Context) error) error {
	ctx, leave := context.WithTimeoutCause(ctx, until.Sub(s.now()), interlock.ErrExpired)
	defer leave()
	if ctx.Err() != nil {
		return &interlock.Error{Op: "receive", Name: d.ID, Kind: interlock.Retryable, Err: context.Cause(ctx)}
	}
	return fn(ctx)
}

// attempts is how often a request is sent if its reply is lost.
const attempts = 4

var retries = backoff.Policy{First: 50 * time.Millisecond, Max: 500 * time.Millisecond}

// retry repeats what may be repeated. It does not repeat if another delivery has claimed the
// message.
func (s *BestEffort) retry(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		kind := interlock.Kind(err)
		if err == nil || n == attempts || kind == interlock.Definite || kind == interlock.Bug || errors.Is(err, interlock.ErrHeld) {
			return err
		}
		if !retries.Wait(ctx, n) {
			return err
		}
	}
}
