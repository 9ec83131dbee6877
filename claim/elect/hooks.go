package elect

import (
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
)

// Hooks receive what happens to the elections of this process. Every hook may be
// nil. They are called synchronously and must return at once.
type Hooks struct {
	Elected   func(Elected)
	StoodBack func(StoodBack)
	Ended     func(Ended)
	// Lock receives what happens to the lock beneath: waiting, renewals, losses,
	// failed releases. Nil logs failures; its Log chooses where.
	Lock *observe.Lock
}

// Elected: a term begins.
type Elected struct {
	Name  string
	Token interlock.Token
	Wait  time.Duration // from the call of Run
}

// StoodBack: the leadership was granted and given up for one that is nominated.
type StoodBack struct {
	Name    string
	Nominee string
}

// Ended: a term's function has returned and the leadership was given up, or was
// lost before.
type Ended struct {
	Name  string
	Token interlock.Token
	Held  time.Duration // until the function had returned
	Cause error         // interlock.ErrReleased, ErrExpired, ErrLost or ErrSessionEnded in its chain
}
