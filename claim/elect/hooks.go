package elect

import (
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// Hooks receive the events of the elections of this process. Every hook may be nil. Run calls
// them, so they must return at once: while Elected blocks, the candidate holds the leadership
// and its function does not run.
type Hooks struct {
	Elected func(Elected)
	Yielded func(Yielded)
	Ended   func(Ended)
	// Lock receives the events of the underlying lock: waiting, renewals, losses, failed
	// releases. Nil logs failures with Log.
	Lock *observe.Lock
}

// Elected reports that a term begins.
type Elected struct {
	Name  string
	Token interlock.Token
	Wait  time.Duration // from the call of Run
}

// Yielded reports that this candidate was elected and released the leadership in favor of a
// nominated one.
type Yielded struct {
	Name    string
	Nominee string
}

// Ended reports the end of a term: its function has returned, and the leadership was released
// or had been lost.
type Ended struct {
	Name  string
	Token interlock.Token
	Held  time.Duration // until the function had returned
	Cause error         // interlock.ErrReleased, ErrExpired, ErrLost or ErrSessionEnded in its chain
}
