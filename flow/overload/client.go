package overload

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

const burst = 10 // retries, or second attempts, beyond their share of the calls

// A budget is a token bucket: each call adds a part of a token, each retry takes one.
type budget struct {
	mu            sync.Mutex
	ratio, tokens float64
}

// newBudget returns a full budget, or one without tokens if the ratio is not above 0.
func newBudget(ratio float64) budget {
	if ratio <= 0 {
		return budget{}
	}
	return budget{ratio: ratio, tokens: burst}
}

func (b *budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(burst, b.tokens+b.ratio)
}

func (b *budget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// Call calls a backend, and retries if the error is [interlock.Retryable], such as a [RejectedError] of
// the backend. It makes at most Options.Attempts attempts, within the share of retries and before ctx
// ends. It returns the result of the last attempt. A rejection that Call returns has NoRetry, because
// it was retried here. Call blocks until call returns or, with Options.Hedge, until the first result.
func Call[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (T, error) {
	return retry(ctx, p, func(ctx context.Context) (T, error) {
		v, cancel, err := hedge(ctx, p, call, func(T) {})
		cancel()
		return v, err
	})
}

// Once is [Call] for calls that are not idempotent: it makes at most one attempt.
func Once[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (T, error) {
	p.retries.deposit()
	v, err := attempt(ctx, p, call)
	return v, final(err)
}

// Hedges reports whether Options.Hedge makes [Call] run two attempts at the same time.
func (p *Policy) Hedges() bool { return p.o.Hedge > 0 }

var errNoReturn = &interlock.Error{Op: "call", Kind: interlock.Uncertain, Err: failure.ErrNoReturn}

// hedge makes a call and, with Options.Hedge, a second one if the first takes that long. The first result
// counts; call cancel after its use. The context of the other call ends at once, and drop gets its
// value.
func hedge[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error), drop func(T)) (v T, cancel func(), err error) {
	if !p.Hedges() {
		v, err = call(ctx)
		return v, func() {}, err
	}
	type result struct {
		first bool
		v     T
		err   error
		panic any // nil if call returned
	}
	p.hedges.deposit()
	results, open := make(chan result), make(chan struct{}) // closed after the first result
	start := func(first bool) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			r := result{first: first, err: errNoReturn}
			defer func() {
				r.panic = recover()
				select {
				case results <- r:
				case <-open:
					drop(r.v)
				}
			}()
			r.v, r.err = call(ctx)
		}()
		return cancel
	}
	cancelFirst, cancelSecond := start(true), func() {}
	var r result
	select {
	case r = <-results:
	case <-time.After(p.o.Hedge):
		if p.hedges.withdraw() {
			cancelSecond = start(false)
		}
		r = <-results
	}
	close(open)
	if r.panic != nil {
		cancelFirst()
		cancelSecond()
		panic(r.panic) // in the goroutine of the caller, as without Hedge
	}
	if r.first {
		cancelSecond()
		return r.v, cancelFirst, r.err
	}
	cancelFirst()
	return r.v, cancelSecond, r.err
}

// retry runs Call without hedging.
func retry[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (T, error) {
	p.retries.deposit()
	for n := 1; ; n++ {
		v, err := attempt(ctx, p, call)
		if err == nil {
			return v, nil
		}
		var after time.Duration
		if rejected, found := errors.AsType[*RejectedError](err); found {
			after = min(rejected.RetryAfter, math.MaxInt64/40) // so that no sum overflows
		}
		first := max(p.o.Backoff, after/2) // spreads callers that got the same Retry-After
		wait := after + backoff.Policy{First: first, Max: 20 * first}.Delay(n, rand.Float64())
		deadline, bounded := ctx.Deadline()
		if interlock.Kind(err) != interlock.Retryable || n >= p.o.Attempts ||
			bounded && time.Until(deadline) < wait || !p.retries.withdraw() || !backoff.Sleep(ctx, wait) {
			return v, final(err)
		}
	}
}

// final returns an error for the caller: a rejection that no layer above retries.
func final(err error) error {
	if rejected, found := errors.AsType[*RejectedError](err); found {
		return &RejectedError{Reason: rejected.Reason, RetryAfter: rejected.RetryAfter, NoRetry: true}
	}
	return err
}

// attempt makes one attempt, unless the throttle or the breaker rejects it.
func attempt[T any](ctx context.Context, p *Policy, call func(context.Context) (T, error)) (v T, err error) {
	if p.throttle.AcquirePermit() != nil {
		p.throttle.RecordFailure() // rejections here count as demand
		return v, &RejectedError{Reason: "the backend rejects too many calls", NoRetry: true}
	}
	if p.breaker != nil && !p.breaker.TryAcquirePermit() {
		return v, &RejectedError{Reason: "the circuit breaker is open", NoRetry: true}
	}
	failed, cancelled := true, false // also if call panics
	defer func() { p.record(failed, cancelled, err) }()
	v, err = call(ctx)
	var rejected *RejectedError
	cancelled = err != nil && errors.Is(ctx.Err(), context.Canceled)
	failed = err != nil && !errors.As(err, &rejected) && !cancelled && p.o.IsFailure(err)
	return v, err
}

// record reports rejections to the throttle and failures to the breaker. A cancelled call says nothing about the backend.
// Only a trial call must report something: the breaker opens again, because success is not proved.
func (p *Policy) record(failed, cancelled bool, err error) {
	if _, found := errors.AsType[*RejectedError](err); found {
		p.throttle.RecordFailure()
	} else {
		p.throttle.RecordSuccess()
	}
	switch {
	case p.breaker == nil, cancelled && p.breaker.IsClosed():
	case failed, cancelled:
		p.breaker.RecordFailure()
	default:
		p.breaker.RecordSuccess()
	}
}
