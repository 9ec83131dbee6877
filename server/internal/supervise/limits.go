package supervise

import (
	"fmt"
	"syscall"
	"time"
)

// Limits bounds a hold.
type Limits struct {
	// TTL is how long the claim lasts without renewal. Required.
	TTL time.Duration
	// Grace is the time between TERM and KILL; 0 means 5 s, or a sixth of the TTL if that is
	// shorter. It must be shorter than half the TTL. A claim that is renewed every third of the
	// TTL often has no more than two thirds left.
	Grace time.Duration
	// MaxHold bounds the hold; 0 means no bound.
	MaxHold time.Duration
	// OnSuspend is the effect of Ctrl-Z; zero means [ContinueOnSuspend].
	OnSuspend Policy
}

// Policy is the reaction to a suspended command.
type Policy int

const (
	// ContinueOnSuspend lets the command continue.
	ContinueOnSuspend Policy = iota
	// ReleaseOnSuspend ends the command in order and releases the lock.
	ReleaseOnSuspend
	// KillOnSuspend kills the command and releases the lock.
	KillOnSuspend
)

// Check sets defaults, and returns an error for an impossible limit.
func (l Limits) Check() (Limits, error) {
	if l.Grace == 0 {
		l.Grace = min(5*time.Second, l.TTL/6)
	}
	switch {
	case l.TTL <= 0:
		return l, fmt.Errorf("the TTL must be above 0, not %v", l.TTL)
	case l.Grace < 0 || l.MaxHold < 0:
		return l, fmt.Errorf("a time limit cannot be negative")
	case l.Grace >= l.TTL/2:
		return l, fmt.Errorf("a grace of %v is too long for a TTL of %v: it must be shorter than %v, "+
			"so that a missed renewal does not end the command", l.Grace, l.TTL, l.TTL/2)
	}
	return l, nil
}

// sweep is the interval of checks of a group that must end.
const sweep = 20 * time.Millisecond

// margin returns the time between the KILL and the end of the claim, for late timers and for
// the kernel to act.
func (l Limits) margin() time.Duration {
	return min(max(l.TTL/50, 10*time.Millisecond), 250*time.Millisecond)
}

// tick returns the longest time between two readings of the clock: timers do not count
// while the machine sleeps, but the claim's clock does.
func (l Limits) tick() time.Duration {
	return min(max(l.TTL/20, 10*time.Millisecond), 500*time.Millisecond)
}

// late returns the delay of a step that shows that the supervisor was stopped.
func (l Limits) late() time.Duration { return l.TTL / 10 }

// Outcome is how a hold ended.
type Outcome string

const (
	// Completed: the command ended by itself, or by a signal that we did not send.
	Completed Outcome = "completed"
	// Lost: the claim ended, or was about to, while the command ran.
	Lost Outcome = "lost"
	// MaxHold: the command was ended because it exceeded MaxHold.
	MaxHold Outcome = "max_hold"
	// Suspended: the command was ended because it was suspended.
	Suspended Outcome = "suspended"
)

// Status is how the command itself ended.
type Status struct {
	Code   int            // its exit code, if Signal is 0
	Signal syscall.Signal // the signal that ended it; 0 if it exited
}

// Result is the outcome of a hold.
type Result struct {
	Outcome Outcome
	Status  Status
	Why     error // nil if Completed
	Asked   bool  // INT, TERM or QUIT was forwarded: the end was asked for
}
