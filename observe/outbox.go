package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Outbox receives the events of an outbox's messages and of its relay. Every hook may be nil. For
// each slice that a relay serves, a goroutine calls them, one at a time, in the order of the events.
// Hooks should return at once. A hook that blocks delays later events of its slice: at most 65,536
// wait, further ones are dropped. The end of the relay waits for them, for up to five seconds.
type Outbox struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Serving   func(OutboxServing)
	Published func(OutboxPublished)
	Failed    func(OutboxFailed)
	Paused    func(OutboxPaused)
	Trouble   func(OutboxTrouble)
	Stopped   func(OutboxStopped)
}

// OutboxServing reports that this relay begins to serve a slice.
type OutboxServing struct {
	Slice int
	Token interlock.Token // of the claim
	Owner string          // of the claim
}

// OutboxPublished reports that the sink has answered for a batch.
type OutboxPublished struct {
	Slice  int
	Sent   int           // messages that were delivered
	Failed int           // messages that were not, including those held back
	Took   time.Duration // the sink's answer
	Oldest time.Duration // since the oldest of them was added, by the database's clock
}

// OutboxFailed reports that a message was not delivered. It covers the message itself, not
// those that wait for it.
type OutboxFailed struct {
	Slice      int
	ID         string
	Topic, Key string
	Attempts   int           // so far, including this one
	Poison     bool          // the sink will never accept it
	Dead       bool          // it becomes a dead letter
	Pause      time.Duration // until it is tried again; 0 if it is dead
	Err        error
}

// OutboxPaused reports that nothing of a batch was delivered, so the sink seems to be
// unavailable: the slice waits, and no message counts as failed.
type OutboxPaused struct {
	Slice int
	For   time.Duration
	Err   error // the first one
}

// OutboxTrouble reports that a request of the relay to the database failed. The relay retries.
type OutboxTrouble struct {
	Slice int // -1 before the relay knows how many there are
	Op    string
	Err   error
}

// OutboxStopped reports that this relay no longer serves a slice.
type OutboxStopped struct {
	Slice int
	Err   error // why
}
