package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// Priority orders the keys of a queue against each other, never the messages of one key.
type Priority int

// The priorities. A key waits at most a bounded time longer for each step below another one.
const (
	LowPriority    Priority = -1
	NormalPriority Priority = 0
	HighPriority   Priority = 1
)

// A QueueMessage is a message of a queue. Messages of one key are handled one at a time, in
// order; one without a key is in no order.
type QueueMessage struct {
	ID      string            // unique for all time, 1 to 255 bytes
	Key     string            // at most MaxName bytes; empty: in no order
	Headers map[string]string // beside the payload
	Payload []byte
	// Unique drops this message if an unfinished one of the queue has the same; empty: never.
	Unique string
	// Delay is how long it is not delivered, nor what comes after it of its key.
	Delay time.Duration
	// Priority is that of its key from now on.
	Priority Priority
}

// An Assignment is the claim under which messages are handled: on a group of one key in a queue
// whose keys are leased, on a partition in one that assigns partitions. Its token rises with
// every assignment of the same key, also over restarts and after the queue was empty. Its
// context ends when another consumer may have the messages.
type Assignment interface {
	interlock.Claim
	// Revoked is closed when the assignment is to be given up: the consumer begins no more of
	// its messages, and settles those that it has.
	Revoked() <-chan struct{}
}

// A Received is one delivery of a message.
type Received struct {
	QueueMessage
	Queue   string
	Attempt int       // 1 for the first; failures and consumers that died count
	Added   time.Time // by the clock of the queue
	Claim   Assignment
	Place   int64 // the driver's own number of the message
}

// An Outcome is how a delivery ended.
type Outcome int

const (
	// Release gives back a message that was not begun: it is delivered again, in its place.
	Release Outcome = iota
	// Ack removes the message: it was handled.
	Ack
	// Retry delivers it again after a pause. What comes after it of its key waits.
	Retry
	// Dead moves it to the dead letters. Its key goes on.
	Dead
	// Park keeps it, and all of its key, until an operator resumes the key.
	Park
)

// A Settlement is the outcome of one delivery.
type Settlement struct {
	Received
	Outcome   Outcome
	After     time.Duration // of a Retry
	Uncounted bool          // the Retry is not the message's fault: Attempt stays
	Reason    string        // of a Retry, Dead or Park; for people
}

// A QueueLimit bounds what is received at once. Both are above zero.
type QueueLimit struct {
	Messages int
	Bytes    int // of payload; the first message may have more
}

// QueueOptions are those of one consumer.
type QueueOptions struct {
	// Owner names the consumer, for people: at most 255 bytes.
	Owner string
	// Lease is how long messages stay with a consumer that has died; the consumer renews it
	// while it lives. 0 is the driver's default.
	Lease time.Duration
}

// A Queue keeps messages until they are settled, and delivers those of one key to one consumer
// at a time, in order. Its methods are safe for concurrent use.
type Queue interface {
	// Join begins to consume the queue of a name, beside other consumers. Bad names and
	// options are a Bug. ctx bounds the call only.
	Join(ctx context.Context, name string, o QueueOptions) (QueueConsumer, error)
}

// A QueueConsumer is one member of the group of consumers of a queue. It keeps its assignments
// alive by itself, whether or not Receive is called: not to call it is how to pause.
type QueueConsumer interface {
	// Receive waits until there are messages, and returns some: those of a key in order, and
	// of one Assignment together. A message is not delivered again under the same Assignment
	// until it is settled as Retry or Release, and nothing behind it of its key before it.
	// It returns when ctx ends, and retries nothing. After Close it is interlock.ErrClosed.
	Receive(ctx context.Context, limit QueueLimit) ([]Received, error)
	// Settle records outcomes durably, and returns an error for each, nil if it is recorded.
	// Of a message whose assignment has gone to somebody else it changes nothing; the error is
	// an interlock.ErrLost, Definite. Any other error leaves it unsettled here, so the call can
	// be repeated, also after an Uncertain one: an ErrLost then may be that of its own success.
	// Who settles a message as Retry, Dead or Park also settles what was received behind
	// it of its key, after a Retry or Park as Release.
	Settle(ctx context.Context, settlements []Settlement) []error
	// Close leaves the group, and gives back what is not settled without counting an attempt.
	// It ends the contexts of all assignments, with the cause interlock.ErrReleased. If ctx
	// ends first the assignments are left to expire.
	Close(ctx context.Context) error
}
