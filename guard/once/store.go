package once

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultLease is how long a claim of a [BestEffort] lasts if BestEffortOptions do not say.
const DefaultLease = time.Minute

// BestEffortOptions are optional; nil and the zero value work.
type BestEffortOptions struct {
	// Lease is how long an effect may take; 0 means [DefaultLease]. Its context
	// ends then, and another delivery may begin it.
	Lease time.Duration
	// Retention is how long it is kept that a message was done, as for an Inbox; 0
	// means [DefaultRetention].
	Retention time.Duration
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Once
}

// A BestEffort remembers messages in a store where their effects are not, such as Redis
// beside a mail server. Its promise is smaller than an [Inbox]'s: the effect is
// made once but for two windows. If the process dies, or the store cannot be
// reached, between the effect and the record of it, it is made again when the lease
// is over. If the effect goes on after the lease is over, another delivery makes it
// too. What the store loses, it forgets. Let effects bear it, or give the message's
// ID to the system that makes them.
//
// It is safe for concurrent use. Claims and records whose answer is lost are sent
// again, a few times.
type BestEffort struct {
	once     driver.Once
	consumer string
	options  BestEffortOptions
	random   func() float64   // in [0,1), for waits
	now      func() time.Time // which bounds effects
}

// NewBestEffort remembers in once, which a driver package provides, for a consumer, who
// is named as in [Inbox]. It sends nothing. A wrong name or negative time is a Bug.
func NewBestEffort(once driver.Once, consumer string, o *BestEffortOptions) (*BestEffort, error) {
	if once == nil {
		return nil, failure.Bug("open store", consumer, "there is no driver")
	}
	if err := named("consumer", consumer); err != nil {
		return nil, err
	}
	s := &BestEffort{once: once, consumer: consumer, random: randomness(), now: time.Now}
	if o != nil {
		s.options = *o
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&s.options.Lease, DefaultLease}, {&s.options.Retention, DefaultRetention}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
		if *d.value < time.Millisecond || *d.value > driver.MaxKeep {
			return nil, failure.Bug("open store", consumer, "%v is not between a millisecond and %v", *d.value, driver.MaxKeep)
		}
	}
	return s, nil
}

// Once claims m, runs fn, which makes its effect, and records that it did. It
// returns [Done]; [Duplicate] if that was recorded before; [Mismatched] and a
// [MismatchError]; or [Undone] and:
//
//   - a [interlock.HeldError], Retryable: another delivery of it is under way. Let
//     it be delivered again, after the lease at the latest;
//   - a Retryable error: the claim was made too late for fn to begin, because ctx or
//     the lease had ended. It is given up;
//   - fn's own error. The claim is given up, so that it can be delivered at once;
//   - an Uncertain error: the store did not say that it claimed m, and fn did not
//     run, or it did not say that it recorded it, and fn did.
//
// A message with a sequence number is a Bug: a store has no sequences. Claims are
// given up, and effects recorded, even after ctx has ended, for five seconds each.
func (s *BestEffort) Once(ctx context.Context, m Message, fn func(ctx context.Context) error) (Outcome, error) {
	d, err := s.admit(m, fn != nil)
	if err != nil {
		return Undone, err
	}
	outcome, until, err := s.claim(ctx, d)
	if outcome != Done || err != nil {
		tell(s.options.Hooks, s.consumer, m, outcome, err)
		return outcome, err
	}
	return s.run(ctx, d, until, fn)
}

func (s *BestEffort) admit(m Message, effect bool) (driver.Delivery, error) {
	d := driver.Delivery{Consumer: s.consumer, ID: m.ID, Hash: m.hash(), Owner: crand.Text()}
	switch {
	case !effect:
		return d, failure.Bug("receive", m.name(), "there is no function that makes its effect")
	case m.Seq != 0:
		return d, failure.Bug("receive", m.name(), "it has a sequence number, and a store has no sequences")
	}
	return d, m.check()
}

// claim is Done if the effect is to be made, by a time.
func (s *BestEffort) claim(ctx context.Context, d driver.Delivery) (outcome Outcome, until time.Time, err error) {
	var found driver.Claimed
	err = s.insist(ctx, func() (err error) {
		until = s.now().Add(s.options.Lease)
		found, err = s.once.Claim(ctx, d, s.options.Lease)
		return err
	})
	switch {
	case err != nil:
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

// run makes the effect, and settles the claim.
func (s *BestEffort) run(ctx context.Context, d driver.Delivery, until time.Time, fn func(context.Context) error) (Outcome, error) {
	made := false
	defer func() {
		if !made {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
			defer cancel()
			_ = s.once.Forget(ctx, d) // otherwise the lease ends by itself
		}
	}()
	if err := s.within(ctx, d, until, fn); err != nil {
		return Undone, err
	}
	made = true
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := s.insist(after, func() error { return s.once.Done(after, d, s.options.Retention) })
	if err != nil {
		return Undone, &interlock.Error{Op: "receive", Name: d.ID, Kind: interlock.Uncertain,
			Err: fmt.Errorf("its effect was made, and may be made again, since that could not be recorded: %w", err)}
	}
	return Done, nil
}

// within makes the effect while the lease lasts, if it still does.
func (s *BestEffort) within(ctx context.Context, d driver.Delivery, until time.Time, fn func(context.Context) error) error {
	ctx, leave := context.WithTimeoutCause(ctx, until.Sub(s.now()), interlock.ErrExpired)
	defer leave()
	if ctx.Err() != nil {
		return &interlock.Error{Op: "receive", Name: d.ID, Kind: interlock.Retryable, Err: context.Cause(ctx)}
	}
	return fn(ctx)
}

// attempts is how often a request is sent whose answer was lost.
const attempts = 4

var retries = backoff.Policy{First: 50 * time.Millisecond, Max: 500 * time.Millisecond}

// insist repeats what may be repeated. That somebody else has a message is an answer.
func (s *BestEffort) insist(ctx context.Context, do func() error) error {
	for n := 1; ; n++ {
		err := do()
		kind := interlock.Kind(err)
		if err == nil || n == attempts || kind == interlock.Definite || kind == interlock.Bug || errors.Is(err, interlock.ErrHeld) {
			return err
		}
		wait := time.NewTimer(retries.Delay(n, s.random()))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return err
		}
	}
}

// randomness gives numbers in [0,1) to any number of callers.
func randomness() func() float64 {
	var seed [16]byte
	crand.Read(seed[:]) // never fails
	random := rand.New(rand.NewPCG(binary.NativeEndian.Uint64(seed[:8]), binary.NativeEndian.Uint64(seed[8:])))
	var mu sync.Mutex
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}
