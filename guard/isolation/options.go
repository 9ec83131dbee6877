package isolation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultAttempts is how often a transaction is run if Options do not say.
const DefaultAttempts = 5

// waits is how long to wait between attempts: those that met once would meet again.
var waits = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

// Options of [Do] and [Serializable]; nil and the zero value work.
type Options struct {
	// Attempts is how often the function runs at most, with capped exponential
	// backoff and jitter in between (20 ms at most before the second attempt, twice
	// as much before each later one, up to a second); 0 means [DefaultAttempts].
	Attempts int
	// Idle is for how long a transaction may stand still before the server ends it,
	// so that one whose process was stopped does not lock others out; 0 means what
	// the session has. MariaDB counts it in whole seconds.
	Idle time.Duration
	// Statement is for how long one statement may run, or wait for locks; it needs
	// Idle. 0 means what the session has.
	Statement time.Duration
	// Observe receives events; the zero value disables it.
	Observe observe.Isolation

	clock *clock
}

// clock is time and chance.
type clock struct {
	now    func() time.Time
	random func() float64 // in [0,1)
	// sleep waits for d; it is false if ctx ended before.
	sleep func(ctx context.Context, d time.Duration) bool
}

var realClock = clock{now: time.Now, random: rand.Float64, sleep: sleep}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// filled is o with what it does not say.
func (o *Options) filled() (Options, error) {
	if o == nil {
		o = &Options{}
	}
	filled := *o
	switch {
	case o.Attempts < 0, o.Idle < 0, o.Statement < 0:
		return filled, bug("a negative number")
	case o.Statement > 0 && o.Idle == 0:
		return filled, bug("a bound on statements without one on standing still")
	case o.Attempts == 0:
		filled.Attempts = DefaultAttempts
	}
	if o.clock == nil {
		filled.clock = &realClock
	}
	return filled, nil
}

func bug(why string) error {
	return &interlock.Error{Op: "run transaction", Kind: interlock.Bug, Err: fmt.Errorf("options: %s", why)}
}

// An ExhaustedError tells that a transaction was undone at each attempt. Nothing
// was done. It is Retryable: with less going on it may work.
type ExhaustedError struct {
	Level    driver.Isolation
	Attempts int
	Err      error // of the last one
}

// Error tells how often it was tried.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("a %v transaction was undone %d times, because of others: %v", e.Level, e.Attempts, e.Err)
}

// Unwrap gives the error of the last attempt.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// ErrorKind is [interlock.Retryable].
func (e *ExhaustedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }
