package observe

import (
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Queue receives the events of a queue's consumer. Every hook may be nil. A goroutine of the consumer
// calls them, one at a time, in the order of the events. Hooks should return at once. A hook that
// blocks delays later events: at most 65,536 wait, further ones are dropped. Close waits for them, for
// up to five seconds; no hook may call it.
type Queue struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Failed  func(QueueFailed)
	Lost    func(QueueLost)
	Trouble func(QueueTrouble)
}

// QueueFailed reports that a handler has returned an error.
type QueueFailed struct {
	Queue, ID, Key string
	Attempt        int           // so far, including this one
	Dead           bool          // the message becomes a dead letter
	Parked         bool          // its key waits for an operator
	Held           bool          // a lock was held: it does not count as a failure
	Pause          time.Duration // until it is tried again; 0 if it is not
	Err            error
}

// QueueLost reports that an outcome was not recorded, because another consumer has the message.
type QueueLost struct {
	Queue, ID, Key string
	Token          interlock.Token // of the claim that was lost
}

// QueueTrouble reports that a request to the queue failed. The consumer retries.
type QueueTrouble struct {
	Queue string
	Op    string
	Err   error
}

// WithDefaults returns h with hooks that log failed messages, lost claims and trouble.
func (h *Queue) WithDefaults() *Queue {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, func(e QueueFailed) string {
		switch {
		case e.Dead:
			return "message became a dead letter"
		case e.Parked:
			return "key of a queue parked"
		}
		return "message not handled"
	})
	OnNil(&r.Lost, r.Log, warn, always[QueueLost]("claim of a message lost"))
	OnNil(&r.Trouble, r.Log, warn, whenFailed("queue failed", func(e QueueTrouble) error { return e.Err }))
	return r
}
