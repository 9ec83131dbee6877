package overload

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/interlock-dev/interlock"
)

// Options of a [Policy]; nil and the zero value work.
type Options struct {
	// MinRunning and MaxRunning bound the adaptive limit of concurrent calls in a server, which begins
	// at FirstRunning; 0 means 1, 200 and 20.
	MinRunning, MaxRunning, FirstRunning int
	// MaxLatency is the latency that at most a tenth of the calls in a server may exceed: if more do,
	// the limit decreases, down to MinRunning. 0 means a second, negative means none.
	MaxLatency time.Duration
	// MaxWaiting bounds the queue of a server; 0 means 100, negative means no queue.
	MaxWaiting int
	// MaxWait is how long a call may wait, and Target how long once the queue was not empty for
	// MaxWait; 0 means 100 ms and 5 ms.
	MaxWait, Target time.Duration

	// Attempts bounds the attempts of a call by a client; 0 means 3, 1 means no retries.
	Attempts int
	// Retries is the share of retries in calls, at most 1, with a burst of ten. 0 means 0.1, negative
	// means none.
	Retries float64
	// Backoff bounds the random wait before the first retry; it doubles for the second. 0 means 100 ms.
	// After a RetryAfter, the wait is added to that, and its bound is at least half of it.
	Backoff time.Duration
	// IsFailure reports whether an error of a call is a failure of the backend; nil means that all are.
	// Rejections and cancelled calls never are.
	IsFailure func(error) bool
	// OpenFor is how long the circuit breaker rejects calls. It opens if half of at least 20 calls
	// in 10 s failed. 0 means 5 s, negative means no circuit breaker. Then 3
	// trial calls decide whether it closes. If one of them fails or is cancelled, it opens again.
	OpenFor time.Duration
	// Hedge is the time after which a second attempt runs beside a slow one; 0 means never. The first
	// result counts, and the other attempt is cancelled. Second attempts are at most a tenth of the
	// calls, with a burst of ten. A [Call] must then be idempotent; transports check requests.
	Hedge time.Duration
}

// Validate returns an error if the options are invalid.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.MinRunning < 1 || o.MinRunning > o.FirstRunning || o.FirstRunning > o.MaxRunning || o.MaxRunning > math.MaxInt32:
		return fmt.Errorf("%d to %d calls run at once, at first %d: want 1 ≤ MinRunning ≤ FirstRunning ≤ MaxRunning", o.MinRunning, o.MaxRunning, o.FirstRunning)
	case o.Target <= 0 || o.Target > o.MaxWait:
		return fmt.Errorf("a Target of %v is not between 0 and a MaxWait of %v", o.Target, o.MaxWait)
	case o.Attempts < 1 || o.Backoff < 0 || o.Hedge < 0:
		return fmt.Errorf("%d attempts, a Backoff of %v, a Hedge of %v: none may be negative", o.Attempts, o.Backoff, o.Hedge)
	case !(o.Retries <= 1):
		return fmt.Errorf("a share of %v of retries is more than 1", o.Retries)
	}
	return nil
}

func (o Options) withDefaults() Options {
	setDefault(&o.MinRunning, 1)
	setDefault(&o.MaxRunning, max(200, o.MinRunning))
	setDefault(&o.FirstRunning, min(max(20, o.MinRunning), o.MaxRunning))
	setDefault(&o.MaxLatency, time.Second)
	setDefault(&o.MaxWaiting, 100)
	setDefault(&o.MaxWait, 100*time.Millisecond)
	setDefault(&o.Target, min(5*time.Millisecond, o.MaxWait))
	setDefault(&o.Attempts, 3)
	setDefault(&o.Retries, 0.1)
	setDefault(&o.Backoff, 100*time.Millisecond)
	setDefault(&o.OpenFor, 5*time.Second)
	if o.IsFailure == nil {
		o.IsFailure = func(error) bool { return true }
	}
	return o
}

func setDefault[T comparable](value *T, otherwise T) {
	if *value == *new(T) {
		*value = otherwise
	}
}

// A Policy protects one server, or one backend from the calls of this process. Only hedged attempts use
// goroutines. It is safe for concurrent use.
type Policy struct {
	o Options

	// the server's side
	limiter adaptivelimiter.AdaptiveLimiter[any]
	mu      sync.Mutex
	queue   queue
	rail    rail
	running int
	takes   time.Duration // moving average of the latency

	// the client's side
	throttle adaptivethrottler.AdaptiveThrottler[any]
	breaker  circuitbreaker.CircuitBreaker[any] // nil if there is none
	retries  budget
	hedges   budget
}

// New returns a policy. Invalid options are a Bug.
func New(o *Options) (*Policy, error) {
	o = cmp.Or(o, &Options{})
	if err := o.Validate(); err != nil {
		return nil, &interlock.Error{Op: "make overload policy", Kind: interlock.Bug, Err: err}
	}
	p := &Policy{o: o.withDefaults()}
	p.limiter = adaptivelimiter.NewBuilder[any]().
		WithLimits(uint(p.o.MinRunning), uint(p.o.MaxRunning), uint(p.o.FirstRunning)).Build()
	p.queue = queue{most: p.o.MaxWaiting, maxWait: p.o.MaxWait, target: p.o.Target}
	p.rail = rail{latency: p.o.MaxLatency, least: p.o.MinRunning, most: p.o.MaxRunning, limit: p.o.MaxRunning}
	// A short window, so that rejections do not count for long after an overload.
	p.throttle = adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.5, 10, 2*time.Second).Build()
	if p.o.OpenFor > 0 {
		p.breaker = circuitbreaker.NewBuilder[any]().WithFailureRateThreshold(0.5, 20, 10*time.Second).
			WithSuccessThreshold(3).WithDelay(p.o.OpenFor).Build()
	}
	p.retries = newBudget(p.o.Retries)
	p.hedges = newBudget(0.1)
	return p, nil
}

// A Class is how critical a call is. The classes are those of Google's services.
type Class int

const (
	Sheddable     Class = iota - 2 // may fail for minutes, such as batch work
	SheddablePlus                  // may fail for seconds, such as batch work with a waiting user
	Critical                       // the default
	CriticalPlus                   // users see a failure at once

	classes = 4
)

// String returns the class in lower case, as in [HeaderClass].
func (c Class) String() string {
	return [...]string{"sheddable", "sheddable-plus", "critical", "critical-plus"}[c.index()]
}

// index returns the number of a class, from 0; of the nearest one if the class is invalid.
func (c Class) index() int { return min(max(int(c-Sheddable), 0), classes-1) }

type classKey struct{}

// WithClass returns a context with a class. [Policy.Transport] sends the class.
func WithClass(ctx context.Context, c Class) context.Context {
	return context.WithValue(ctx, classKey{}, c)
}

// ClassOf returns the class of a context, or [Critical].
func ClassOf(ctx context.Context) Class {
	c, _ := ctx.Value(classKey{}).(Class)
	return c
}

// A RejectedError means that a call was rejected because of overload. It is Retryable, or Definite with
// NoRetry.
type RejectedError struct {
	Reason     string
	RetryAfter time.Duration // least wait before a retry
	NoRetry    bool          // a retry here or in a layer above adds to the overload
}

// Error returns a message with the reason.
func (e *RejectedError) Error() string {
	if e.NoRetry {
		return "rejected: " + e.Reason
	}
	return fmt.Sprintf("rejected: %s; retry after %v", e.Reason, e.RetryAfter)
}

// ErrorKind returns [interlock.Retryable] or [interlock.Definite].
func (e *RejectedError) ErrorKind() interlock.ErrorKind {
	if e.NoRetry {
		return interlock.Definite
	}
	return interlock.Retryable
}
