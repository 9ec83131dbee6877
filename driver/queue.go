package driver

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock"
)

// Priority orders the keys of a queue relative to each other, never the messages of one key.
type Priority int

// The priorities. Each step of lower priority delays a key by a bounded time at most.
const (
	LowPriority    Priority = -1
	NormalPriority Priority = 0
	HighPriority   Priority = 1
)

// A QueueMessage is a message of a queue. Messages of one key are handled one at a time, in
// order. Messages without a key are unordered.
type QueueMessage struct {
	ID      string            // never used again, 1 to 255 bytes
	Key     string            // at most MaxName bytes; empty means unordered
	Headers map[string]string // sent with the payload
	Payload []byte
	// Unique drops this message if the queue has an unfinished message with the same Unique.
	// Empty disables this.
	Unique string
	// Delay is how long the delivery of this message is delayed. Later messages of its key wait
	// too.
	Delay time.Duration
	// Priority is the priority of the message's key from now on.
	Priority Priority
}

// A MessageError means that a message of a queue or an outbox is invalid. Nothing was sent to the
// database. It is Definite.
type MessageError struct {
	Index int // of the message in the call
	ID    string
	Why   string
}

// Error has the message and the reason.
func (e *MessageError) Error() string {
	return fmt.Sprintf("add message %d %q: %s", e.Index, e.ID, e.Why)
}

// ErrorKind is [interlock.Definite].
func (e *MessageError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// An Assignment is the claim under which messages are handled. In a queue with leased keys, it
// is a claim on a group of one key; in a queue with assigned partitions, on a partition. Its
// token rises with every assignment of the same key, also after restarts and after the queue
// was empty. Its context ends when another consumer may receive the messages.
type Assignment interface {
	interlock.Claim
	// Revoked is closed when the consumer must return the assignment. The consumer then starts
	// no more of its messages and settles those it has started.
	Revoked() <-chan struct{}
}

// A Received is one delivery of a message. It does not change after Receive has returned it.
type Received struct {
	QueueMessage
	Queue   string
	Attempt int       // from 1; failures and crashed consumers count
	Added   time.Time // when it was added, by the queue's clock
	Claim   Assignment
	Place   int64 // the driver's number of the message
}

// IsRevoked reports whether the consumer must return an assignment.
func IsRevoked(a Assignment) bool {
	select {
	case <-a.Revoked():
		return true
	default:
		return false
	}
}

// An Outcome is the result of a delivery.
type Outcome int

const (
	// Release returns a message that was not started. It is delivered again, in its place.
	Release Outcome = iota
	// Ack removes the message after it was handled.
	Ack
	// Retry delivers the message again after a pause. Later messages of its key wait.
	Retry
	// Dead moves the message to the dead letters. Later messages of its key are delivered.
	Dead
	// Park keeps the message and all others of its key until an operator resumes the key.
	Park
)

// A Settlement is the outcome of one delivery, or of several of one key.
type Settlement struct {
	*Received // as Receive returned it, or an equal one
	// Later are messages with the same key, claim and outcome, in order after Received.
	Later     []*Received
	Outcome   Outcome
	After     time.Duration // the pause of a Retry
	Uncounted bool          // the Retry does not increase Attempt, because the message did not cause it
	Reason    string        // for a Retry, Dead or Park; for people
}

// All are the messages of the settlement, in order.
func (s *Settlement) All() iter.Seq[*Received] {
	return func(yield func(*Received) bool) {
		for i := -1; i < len(s.Later); i++ {
			m := s.Received
			if i >= 0 {
				m = s.Later[i]
			}
			if !yield(m) {
				return
			}
		}
	}
}

// A QueueLimit limits one Receive. Both fields are above zero.
type QueueLimit struct {
	Messages int
	Bytes    int // of payload; the first message may exceed it
}

// QueueOptions are the options of one consumer.
type QueueOptions struct {
	// Owner names the consumer, for people: at most 255 bytes.
	Owner string
	// Lease is how long messages stay assigned to a consumer that has died. A live consumer
	// renews it. 0 means the driver's default.
	Lease time.Duration
}

// A Queue stores messages until they are settled. It delivers the messages of one key to one
// consumer at a time, in order. Its methods are safe for concurrent use.
type Queue interface {
	// Join adds a consumer to the queue of a name. Other consumers may exist. An invalid name
	// or option is a Bug. ctx bounds this call only.
	Join(ctx context.Context, name string, o QueueOptions) (QueueConsumer, error)
}

// A QueueConsumer is one consumer in the group of a queue. It renews its assignments whether or
// not Receive is called. To pause consumption, stop calling Receive.
type QueueConsumer interface {
	// Receive waits for messages and returns some of them. Messages of one key are in order,
	// and those of one Assignment are together. Those of one key should be together, too: consumers
	// handle them at less cost then. A message is not delivered again under the same
	// Assignment until it is settled as Retry or Release. Later messages of its key are not
	// delivered again before it. If ctx ends, Receive returns; it never retries. After Close
	// the error is interlock.ErrClosed.
	Receive(ctx context.Context, limit QueueLimit) ([]*Received, error)
	// Settle records outcomes durably and returns an error for each; nil means recorded. If
	// another consumer has the assignment now, nothing changes for its messages, and the error
	// is a Definite interlock.ErrLost. After any other error they are unsettled here and
	// the call can be repeated. After an Uncertain error, an ErrLost of the repetition may
	// follow from the success of the first call. Several calls may run at the same time.
	//
	// If a message is settled as Retry, Dead or Park, the caller must also settle all later
	// messages of its key that it received. After Retry or Park it settles them as Release.
	Settle(ctx context.Context, settlements []Settlement) []error
	// Close leaves the group and returns unsettled messages without counting an attempt. It
	// ends the contexts of all assignments with the cause interlock.ErrReleased. If ctx ends
	// first, the assignments expire.
	Close(ctx context.Context) error
}
