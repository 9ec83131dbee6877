package sequence

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

// A Position orders the events of a key: by epoch, then by seq. Epochs are at least
// 0 and seqs at least 1; each epoch begins with seq 1. The zero Position stands
// before all of them.
type Position struct {
	Epoch int64 // raised by a producer that begins again; those that never do use one for ever
	Seq   int64 // one more for each event of the epoch
}

// Before reports whether p comes before q.
func (p Position) Before(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Seq < q.Seq
}

// String is epoch:seq.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Epoch, p.Seq) }

// first reports whether q may come next after p if no event of p's epoch is known
// to be missing.
func (p Position) first(q Position) bool {
	return q.Epoch == p.Epoch && q.Seq == p.Seq+1 || q.Epoch > p.Epoch && q.Seq == 1
}

// An Event is one message of a stream.
type Event struct {
	Key      string // 1 to 512 bytes of UTF-8 without NUL
	Position        // given by the producer: not a log's offsets, in which gaps are legal
	Payload  []byte // not to be changed until the event is settled
	Handle   any    // the caller's own, such as its means to acknowledge; a Source sets it
}

// A Delivery is an event on its way to the handler.
type Delivery struct {
	Event
	// Late: its place was passed over as a hole. Events after it have been
	// delivered, so it may only be applied through a version guard.
	Late bool
}

// A Hole is events of a key that were passed over.
type Hole struct {
	Key      string
	Epoch    int64
	From, To int64 // both are missing, and all between
}

// Outcome is the outcome of offering an event.
type Outcome int

const (
	// Refused: it was not taken; the error says why. It is to be offered again.
	Refused Outcome = iota
	// Delivered: the handler has taken it, in order, and that is durable.
	Delivered
	// Late: the handler has taken it, marked late, and its hole is closed.
	Late
	// Duplicate: it was delivered before.
	Duplicate
	// Stale: its epoch has passed, and it is in no open hole. It was dropped.
	Stale
	// Held: it waits, in memory only, for events before it. It must not be
	// acknowledged until Options.Settled receives its outcome.
	Held
	// Repeated: an event of its position is held. This copy is not remembered and
	// must not be acknowledged; it is a Duplicate once the other is delivered.
	Repeated
)

// String is the outcome's name in lower case.
func (o Outcome) String() string {
	return [...]string{"refused", "delivered", "late", "duplicate", "stale", "held", "repeated"}[o]
}

// Durable reports whether the event may be acknowledged.
func (o Outcome) Durable() bool { return o >= Delivered && o <= Stale }

// A FullError says that an event would have to be held, and that as much is held as
// may be. The source is to pause, and to offer it again. It is Retryable.
type FullError struct {
	Key  string
	What string // of which there is too much
}

// Error says what is full.
func (e *FullError) Error() string {
	return fmt.Sprintf("hold event of %q: too many %s, offer it again later", e.Key, e.What)
}

// ErrorKind is [interlock.Retryable].
func (e *FullError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A HaltedError says that a key stands still because events are missing. It is
// Retryable: they may come, and an operator may call Resume.
type HaltedError struct{ Missing Hole }

// Error names what is missing.
func (e *HaltedError) Error() string {
	return fmt.Sprintf("key %q is halted: %d to %d of epoch %d are missing", e.Missing.Key, e.Missing.From, e.Missing.To, e.Missing.Epoch)
}

// ErrorKind is [interlock.Retryable].
func (e *HaltedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// ErrConflict is a [Store]'s answer: the key is not at the position given. Somebody
// else has moved it; nothing was done.
var ErrConflict = errors.New("another process has moved the key")

// ErrNoHole is a [Store]'s answer: the event is in no open hole. Nothing was done.
var ErrNoHole = errors.New("there is no open hole at the position")
