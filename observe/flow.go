package observe

import (
	"errors"
	"log/slog"
	"time"

	"github.com/interlock-dev/interlock"
)

// Keyed receives the events of the tasks of an executor. Every hook may be nil. Hooks must
// return at once and must not call the executor that reports. The executor measures times only
// for hooks that are set.
type Keyed struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Started func(KeyedStarted)
	Ended   func(KeyedEnded)
	Refused func(KeyedRefused)
}

// WithDefaults returns h with a hook that logs tasks that an executor refused.
func (h *Keyed) WithDefaults() *Keyed {
	r := copyOf(h)
	OnNil(&r.Refused, r.Log, warn, whenFailed("task refused", func(e KeyedRefused) error { return e.Err }))
	return r
}

// KeyedStarted reports that tasks of one key begin to run, together if they are a batch.
type KeyedStarted struct {
	Key   string
	Tasks int           // 1, or the size of the batch
	Wait  time.Duration // of the one that waited longest
	Depth int           // tasks of this key that are still queued
}

// KeyedEnded reports that these tasks have ended.
type KeyedEnded struct {
	Key   string
	Tasks int
	Took  time.Duration
	Err   error // the first task's that failed
}

// KeyedRefused reports that a task was refused, or left the queue before it began.
type KeyedRefused struct {
	Key string
	Err error // full, closed, reentered, or why its context ended
}

// Sequence receives the events of a sequencer's keys. Every hook may be nil. Hooks must return
// at once and must not call the sequencer that reports.
type Sequence struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	// Gap reports that events are missing; the sequencer waits for them.
	Gap func(SequenceGap)
	// Overdue reports that they did not come in time. The sequencer will fetch them, record
	// their hole, or halt the key. Alert on it: it comes before every recorded hole, and again
	// after a crash in between.
	Overdue func(SequenceGap)
	// Recorded reports that their hole is durable, and that the key continues.
	Recorded func(SequenceGap)
	// Halted reports that the key is halted until they come or an operator resumes it.
	Halted func(SequenceGap)
	// Late reports that an event of a recorded hole came, and was delivered as late.
	Late func(SequenceEvent)
	// Dropped reports an event that was delivered before, or whose epoch has passed.
	Dropped func(SequenceEvent)
	// Failed reports that an operation for a key failed; the sequencer retries.
	Failed func(SequenceFailed)
}

// WithDefaults returns h with hooks that log gaps that are overdue, holes, keys that
// are halted, and failures.
func (h *Sequence) WithDefaults() *Sequence {
	r := copyOf(h)
	OnNil(&r.Overdue, r.Log, warn, always[SequenceGap]("events overdue"))
	OnNil(&r.Recorded, r.Log, warn, always[SequenceGap]("hole recorded, key continues"))
	OnNil(&r.Halted, r.Log, loud, always[SequenceGap]("key halted until its events come or an operator resumes it"))
	OnNil(&r.Failed, r.Log, warn, whenFailed("sequence failed", func(e SequenceFailed) error { return e.Err }))
	return r
}

// SequenceGap describes missing events of a key.
type SequenceGap struct {
	Stream, Key string
	Epoch       int64
	From, To    int64         // the first and the last missing
	Waited      time.Duration // since the gap was noticed
}

// SequenceEvent describes one event.
type SequenceEvent struct {
	Stream, Key string
	Epoch, Seq  int64
	Stale       bool // its epoch has passed
}

// SequenceFailed describes a failed operation.
type SequenceFailed struct {
	Stream, Key string
	Failures    int // in a row
	Err         error
}

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

// WithDefaults returns h with hooks that log failed messages, pauses and trouble.
func (h *Outbox) WithDefaults() *Outbox {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, func(e OutboxFailed) string {
		if e.Dead {
			return "message became a dead letter"
		}
		return "message not delivered"
	})
	OnNil(&r.Paused, r.Log, warn, whenFailed("outbox paused, its sink delivers nothing", func(e OutboxPaused) error { return e.Err }))
	OnNil(&r.Trouble, r.Log, warn, whenFailed("outbox failed", func(e OutboxTrouble) error { return e.Err }))
	OnNil(&r.Stopped, r.Log, warn, whenFailed("outbox relay stopped", func(e OutboxStopped) error {
		if errors.Is(e.Err, interlock.ErrClosed) {
			return nil // by this process
		}
		return e.Err
	}))
	return r
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

// Limit receives the events of rate limits. Every hook may be nil. Hooks must return at once and
// must not call the limits that report.
type Limit struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Refused func(LimitRefused) // not logged by default
	Failed  func(LimitFailed)
}

// LimitRefused reports that a call was refused.
type LimitRefused struct {
	Key    string // of the limit that refused it
	Shadow bool   // the call was admitted all the same
}

// LimitFailed reports that the store gave no decision.
type LimitFailed struct {
	Key      string
	Admitted bool // by the failure policy
	Err      error
}

// WithDefaults returns h with a hook that logs failures.
func (h *Limit) WithDefaults() *Limit {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, always[LimitFailed]("no decision about a rate limit"))
	return r
}
