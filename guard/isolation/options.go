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

// DefaultAttempts is the default of Options.Attempts.
const DefaultAttempts = 5

// waits is the delay between attempts. It is random, so that transactions that conflicted do
// not conflict again.
var waits = backoff.Policy{First: 20 * time.Millisecond, Max: time.Second}

// Options configure [Do] and [Serializable]; nil and the zero value are valid.
type Options struct {
	// Attempts is the maximum number of runs of the function; 0 means [DefaultAttempts].
	// Between them is a capped exponential backoff with jitter: at most 20 ms before the second
	// attempt, doubled before each later one, up to a second.
	Attempts int
	// Idle is how long a transaction may be idle before the server ends it, so that a paused
	// process does not block others; 0 keeps the session's setting. MariaDB counts it in whole
	// seconds.
	Idle time.Duration
	// Statement is how long one statement may run or wait for locks; it requires Idle. 0 keeps
	// the session's setting.
	Statement time.Duration
	// Observe receives events; the zero value disables it.
	Observe observe.Isolation

	clock *clock
}

// clock is the source of time and randomness.
type clock struct {
	now    func() time.Time
	random func() float64 // in [0,1)
	// sleep waits for d and returns false if ctx ended first.
	sleep func(ctx context.Context, d time.Duration) bool
}

var realClock = clock{now: time.Now, random: rand.Float64, sleep: backoff.Sleep}

// filled returns o with defaults, or an error if it is invalid.
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

// An ExhaustedError means that the database undid the transaction at each attempt. Nothing was
// done. It is Retryable: with fewer concurrent transactions it may succeed.
type ExhaustedError struct {
	Level    driver.Isolation
	Attempts int
	Err      error // of the last one
}

// Error returns a message with the number of attempts.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("a %v transaction was undone %d times, because of others: %v", e.Level, e.Attempts, e.Err)
}

// Unwrap returns the error of the last attempt.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// ErrorKind returns [interlock.Retryable].
func (e *ExhaustedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }
