package overload

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// burst is how many retries are possible beyond their share of the calls.
const burst = 10

// A retryBudget earns a part of a retry by each call.
type retryBudget struct {
	mu            sync.Mutex
	ratio, tokens float64
}

func (b *retryBudget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(burst, b.tokens+b.ratio)
}

func (b *retryBudget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// Call makes a call to a policy's backend, and retries it if its error is [interlock.Retryable], as
// a [RejectedError] of the backend is: at most Options.Attempts times, within the share of retries
// and before ctx ends. It returns what the last attempt returned. A rejection that Call returns has
// NoRetry, because it was retried here. Call blocks until call returns, or, with Options.Hedge, its
// first result.
func Call[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (T, error) {
	if p.hedge == nil {
		return retry(ctx, p, call)
	}
	return retry(ctx, p, func(ctx context.Context) (T, error) {
		v, err := p.hedge.WithContext(ctx).GetWithExecution(func(e failsafe.Execution[any]) (any, error) {
			return call(e.Context())
		})
		typed, _ := v.(T) // nil if ctx ended
		return typed, err
	})
}

// retry is Call without hedging.
func retry[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (T, error) {
	p.retries.deposit()
	for attempt := 1; ; attempt++ {
		v, err := once(ctx, p, call)
		if err == nil {
			return v, nil
		}
		var rejected *RejectedError
		var after time.Duration
		if errors.As(err, &rejected) {
			after = rejected.RetryAfter
		}
		first := max(p.o.Backoff, after/2) // so that those who wait for the same time do not come together
		wait := after + backoff.Policy{First: first, Max: 20 * first}.Delay(attempt, rand.Float64())
		deadline, bounded := ctx.Deadline()
		if interlock.Kind(err) != interlock.Retryable || attempt >= p.o.Attempts ||
			bounded && time.Until(deadline) < wait || !p.retries.withdraw() || !sleep(ctx, wait) {
			if rejected != nil {
				err = &RejectedError{Reason: rejected.Reason, RetryAfter: rejected.RetryAfter, NoRetry: true}
			}
			return v, err
		}
	}
}

// sleep reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once makes one attempt, unless the throttle or the breaker rejects it.
func once[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (v T, err error) {
	if p.throttle.AcquirePermit() != nil {
		p.throttle.RecordFailure() // so that the share of rejections follows the demand
		return v, &RejectedError{Reason: "the backend rejects too many calls", NoRetry: true}
	}
	if p.breaker != nil && !p.breaker.TryAcquirePermit() {
		return v, &RejectedError{Reason: "the circuit breaker is open", NoRetry: true}
	}
	failed := true // also if call panics
	defer func() { p.record(failed, err) }()
	v, err = call(ctx)
	var rejected *RejectedError
	failed = err != nil && !errors.As(err, &rejected) && !errors.Is(ctx.Err(), context.Canceled) && p.o.IsFailure(err)
	return v, err
}

// record tells the throttle which calls the backend accepts, and the breaker which fail.
func (p *Policy) record(failed bool, err error) {
	var rejected *RejectedError
	if errors.As(err, &rejected) {
		p.throttle.RecordFailure()
	} else {
		p.throttle.RecordSuccess()
	}
	switch {
	case p.breaker == nil:
	case failed:
		p.breaker.RecordFailure()
	default:
		p.breaker.RecordSuccess()
	}
}
