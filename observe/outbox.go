package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Outbox receives what happens to the messages of an outbox and to its relay.
// Every hook may be nil. Hooks must return at once and must not call the relay
// that reports.
type Outbox struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Serving   func(OutboxServing)
	Published func(OutboxPublished)
	Failed    func(OutboxFailed)
	Paused    func(OutboxPaused)
	Trouble   func(OutboxTrouble)
	Stopped   func(OutboxStopped)
}

// OutboxServing: this relay serves a slice from now on.
type OutboxServing struct {
	Slice int
	Token interlock.Token // of the claim
	Owner string          // of the claim
}

// OutboxPublished: a batch was handed to the sink, which has answered.
type OutboxPublished struct {
	Slice  int
	Sent   int           // messages that were delivered
	Failed int           // messages that were not, those that were held back included
	Took   time.Duration // the sink's answer
	Oldest time.Duration // since the oldest of them was added, by the database's clock
}

// OutboxFailed: a message was not delivered. It is reported for the message itself,
// not for those that wait behind it.
type OutboxFailed struct {
	Slice      int
	ID         string
	Topic, Key string
	Attempts   int           // so far, this one included
	Poison     bool          // the sink said that it will never take it
	Dead       bool          // it becomes a dead letter
	Pause      time.Duration // until it is tried again; 0 if it is dead
	Err        error
}

// OutboxPaused: nothing of a batch was delivered, so the sink seems to be away:
// the slice waits, and no message is blamed.
type OutboxPaused struct {
	Slice int
	For   time.Duration
	Err   error // the first one
}

// OutboxTrouble: the database did not do what the relay wanted. It is tried again.
type OutboxTrouble struct {
	Slice int // -1 before the relay knows how many there are
	Op    string
	Err   error
}

// OutboxStopped: this relay serves a slice no more.
type OutboxStopped struct {
	Slice int
	Err   error // why
}
