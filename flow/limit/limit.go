package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// Types of package driver.
type (
	// Rate is [driver.Rate].
	Rate = driver.Rate
	// Algorithm is [driver.Algorithm].
	Algorithm = driver.Algorithm
	// Charge is [driver.Charge].
	Charge = driver.Charge
)

// The algorithms; see [driver.Algorithm].
const (
	GCRA           = driver.GCRA
	FixedWindow    = driver.FixedWindow
	SlidingCounter = driver.SlidingCounter
	SlidingLog     = driver.SlidingLog
)

// PerSecond returns a rate of n units a second, of which n are admitted at once.
func PerSecond(n int64) Rate { return Rate{Count: n, Period: time.Second} }

// PerMinute returns a rate of n units a minute, of which n are admitted at once.
func PerMinute(n int64) Rate { return Rate{Count: n, Period: time.Minute} }

// PerHour returns a rate of n units an hour, of which n are admitted at once.
func PerHour(n int64) Rate { return Rate{Count: n, Period: time.Hour} }

// A Decision combines the limits of a call: it is allowed if all allow it; Remaining is the lowest, and
// times are the longest.
type Decision struct {
	driver.Decision
	// Each has the decisions of the limits, in the order of the charges.
	Each []driver.Decision
}

// Limits are the rate limits of a store. They are safe for concurrent use.
type Limits struct {
	options Options
	calls   coalescer
	denied  denials
	backend *backend.Backend
}

// New returns the limits of a store. Close does not close the store.
func New(store driver.Limiter, o *Options) (*Limits, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Limits{options: options, calls: coalescer{store: store}}, nil
}

// Allow takes one unit of the limit of a key.
func (l *Limits) Allow(ctx context.Context, key string, r Rate) (Decision, error) {
	return l.Take(ctx, Charge{Key: key, Rate: r, Cost: 1})
}

// Take takes all charges or nothing, in one step. With one charge that has a Least, it takes as many
// units as there are; see Decision.Granted. The rate of a key may change between calls: consumed units
// remain consumed.
func (l *Limits) Take(ctx context.Context, charges ...Charge) (Decision, error) {
	call := driver.LimitCall(charges)
	if err := call.Check(); err != nil {
		return Decision{}, err
	}
	if each, ok := l.denied.find(call); ok {
		return l.judge(call, each), nil
	}
	d, _, err := l.decide(ctx, call)
	return d, err
}

// decide decides a valid call by the store. It also returns how many units of the first charge the store
// has counted: none that the failure policy or the shadow mode has admitted.
func (l *Limits) decide(ctx context.Context, call driver.LimitCall) (d Decision, counted int64, err error) {
	a, sent := l.ask(ctx, call)
	if a.Err != nil {
		d, err = l.failed(ctx, call, a.Err)
		return d, 0, err
	}
	l.denied.note(call, a, sent)
	return l.judge(call, a.Decisions), a.Decisions[0].Granted, nil
}

// Peek returns the state of a limit and consumes nothing.
func (l *Limits) Peek(ctx context.Context, key string, r Rate) (Decision, error) {
	return l.Take(ctx, Charge{Key: key, Rate: r})
}

// Refund returns n units that were taken and not used. Refund them at once: if it arrives d after they
// were taken, what drained meanwhile, at most Count·d/Period, may be admitted once more.
func (l *Limits) Refund(ctx context.Context, key string, r Rate, n int64) error {
	_, err := l.Take(ctx, Charge{Key: key, Rate: r, Cost: -max(n, 0)})
	return err
}

// Wait takes one unit of the limit of a key as soon as there is one, or returns when ctx ends. It sees
// what others refund or reset within a minute. It is not fair: the first call that asks takes the unit.
func (l *Limits) Wait(ctx context.Context, key string, r Rate) error {
	for {
		d, err := l.Allow(ctx, key, r)
		if err != nil || d.Allowed {
			return err
		}
		if !backoff.Sleep(ctx, min(d.RetryAfter, maxDenial)) {
			return context.Cause(ctx)
		}
	}
}

// Close waits for shared requests, each of which ends within 10 s, and disconnects if [Open] connected.
// There must be no more calls.
func (l *Limits) Close(ctx context.Context) error {
	l.calls.running.Wait()
	return l.backend.Close(ctx)
}

// ask asks the store, within the timeout. sent is the time of the request.
func (l *Limits) ask(ctx context.Context, call driver.LimitCall) (a driver.LimitAnswer, sent time.Time) {
	if l.options.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.options.Timeout, errTimeout)
		defer cancel()
	}
	sent = time.Now()
	if a = l.calls.take(ctx, call); a.Err != nil {
		a.Err = explain(call, a.Err)
	}
	return a, sent
}

// explain replaces the text of an Uncertain error of a call that takes or refunds units: a repeated call
// does so again.
func explain(call driver.LimitCall, err error) error {
	var unknown *interlock.Error
	if errors.As(err, &unknown) && unknown.Kind == interlock.Uncertain && slices.ContainsFunc(call, func(c Charge) bool { return c.Cost != 0 }) {
		return &unknownError{unknown}
	}
	return err
}

type unknownError struct{ cause *interlock.Error }

func (e *unknownError) Error() string {
	said := *e.cause
	said.Kind, said.Err = interlock.Definite, fmt.Errorf("outcome unknown, its units may be counted: %w", said.Err)
	return said.Error()
}

func (e *unknownError) Unwrap() error { return e.cause }

var errTimeout = errors.New("the store did not decide within Options.Timeout")

// judge combines the decisions of all limits, and reports a refusal.
func (l *Limits) judge(call driver.LimitCall, each []driver.Decision) Decision {
	d := Decision{Decision: each[0], Each: each}
	key := ""
	for i, e := range each {
		if !e.Allowed {
			key = cmp.Or(key, call[i].Key)
		}
		d.Remaining = min(d.Remaining, e.Remaining)
		d.RetryAfter, d.ResetAfter = max(d.RetryAfter, e.RetryAfter), max(d.ResetAfter, e.ResetAfter)
	}
	d.Allowed = key == ""
	if !d.Allowed {
		l.refused(key)
		if l.options.Shadow {
			d.Allowed, d.Granted = true, call[0].Cost
		}
	}
	return d
}

// refused reports a refusal.
func (l *Limits) refused(key string) {
	if report := l.options.Hooks.Refused; report != nil {
		report(observe.LimitRefused{Key: key, Shadow: l.options.Shadow})
	}
}
