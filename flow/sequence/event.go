package sequence

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Position orders the events of a key: by Epoch, then by Seq. Epochs are at least 0. Each epoch
// begins with Seq 1. The zero Position is before all events.
type Position struct {
	Epoch int64 // higher after each restart of the numbers by the producer
	Seq   int64 // one more for each event of the epoch
}

// Before reports whether p comes before q.
func (p Position) Before(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Seq < q.Seq
}

// String returns epoch:seq.
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Epoch, p.Seq) }

// first reports whether q may follow p directly if no event of p's epoch is known to be missing.
func (p Position) first(q Position) bool {
	return q.Epoch == p.Epoch && q.Seq == p.Seq+1 || q.Epoch > p.Epoch && q.Seq == 1
}

// An Event is one message of a stream.
type Event struct {
	Key      string // 1 to 512 bytes of UTF-8 without NUL
	Position        // assigned by the producer: not the offset in a log, where gaps are legal
	Payload  []byte // must not change until the event is settled
	Handle   any    // for the caller, such as the message to acknowledge; a Source sets it
}

// A Delivery is an event as the handler gets it.
type Delivery struct {
	Event
	// Late means that the event was passed over as a hole. Later events were delivered before it,
	// so apply it only through a version guard.
	Late bool
}

// A Hole is a range of events of a key that were passed over.
type Hole struct {
	Key      string
	Epoch    int64
	From, To int64 // inclusive
}

// Outcome is the outcome of offering an event.
type Outcome int

const (
	// Refused: the event was not accepted; the error has the reason. Offer it again.
	Refused Outcome = iota
	// Delivered: the handler has handled it in order, and this is durable.
	Delivered
	// Late: the handler has handled it, marked late, and its hole is closed.
	Late
	// Duplicate: it was delivered before.
	Duplicate
	// Stale: a later epoch has begun, and it is in no open hole. It was dropped.
	Stale
	// Held: it waits, in memory only, for events before it. Do not acknowledge it before
	// Options.Settled receives its outcome.
	Held
	// Repeated: another event of its position is held. Do not acknowledge this copy, which is not
	// kept; it is a Duplicate once the other is delivered.
	Repeated
)

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	return [...]string{"refused", "delivered", "late", "duplicate", "stale", "held", "repeated"}[o]
}

// Durable reports whether the event may be acknowledged.
func (o Outcome) Durable() bool { return o >= Delivered && o <= Stale }

// A FullError means that an event must be held and a bound is reached. The source should pause and
// offer it again. It is Retryable.
type FullError struct {
	Key  string
	What string // the bound
}

// Error returns a message with the key and the bound.
func (e *FullError) Error() string {
	return fmt.Sprintf("hold event of %q: too many %s, offer it again later", e.Key, e.What)
}

// ErrorKind returns [interlock.Retryable].
func (e *FullError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A HaltedError means that a key is halted because events are missing. It is Retryable: the events may
// arrive, and an operator may call Resume.
type HaltedError struct{ Missing Hole }

// Error returns a message with the missing events.
func (e *HaltedError) Error() string {
	return fmt.Sprintf("key %q is halted: %d to %d of epoch %d are missing", e.Missing.Key, e.Missing.From, e.Missing.To, e.Missing.Epoch)
}

// ErrorKind returns [interlock.Retryable].
func (e *HaltedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// ErrConflict is an error of a [Store]: another process has moved the key from the given position.
// Nothing was done.
var ErrConflict = errors.New("another process has moved the key")

// ErrNoHole is an error of a [Store]: the event is in no open hole. Nothing was done.
var ErrNoHole = errors.New("there is no open hole at the position")

// ended handles the outcome of the operation in progress.
func (m *machine) ended(now time.Time, in input) {
	op := *m.doing
	m.doing = nil
	switch {
	case in.err == nil:
		m.succeeded(op, in)
	case op.kind == fill && !in.began && errors.Is(in.err, ErrNoHole):
		m.holes = in.state.Holes
		m.drop(op.events[0], op.offered)
	case !in.began && errors.Is(in.err, ErrConflict):
		m.loaded = false
		if m.moves++; m.moves > 3 {
			m.failed(now, op, in.err)
		}
	default:
		m.failed(now, op, in.err)
	}
}

func (m *machine) succeeded(op effect, in input) {
	m.fresh = m.fresh || op.kind != fill
	if op.kind == load {
		m.loaded, m.holes = true, in.state.Holes
		m.move(in.state.Position)
		return
	}
	m.failures, m.moves = 0, 0
	switch op.kind {
	case open:
		m.holes++
		m.emit(effect{kind: noteRecorded, hole: op.hole})
		m.move(Position{op.hole.Epoch, op.hole.To})
	case fill:
		m.holes = in.state.Holes
		m.report(op.events[0], Late, op.offered)
	case deliver:
		for _, e := range op.events {
			m.report(e, Delivered, op.offered)
		}
		if m.most *= 2; m.most > m.limit {
			m.most = 0
		}
		m.move(op.events[len(op.events)-1].Position)
	}
}

// move sets the position. A gap after it is a new one, and a retry of an earlier operation is void.
func (m *machine) move(to Position) {
	if m.last != to {
		m.last, m.phase, m.retry = to, unseen, time.Time{}
	}
}

// failed handles a failure. If the operation was done nevertheless, the store detects it by the
// position: the retry finds the key moved. An offered event gets the error; anything else is retried
// later.
func (m *machine) failed(now time.Time, op effect, err error) {
	m.moves = 0
	if m.offered != nil && (op.offered || op.kind == load) {
		m.offered = nil
		m.emit(effect{kind: answer, err: err})
		return
	}
	m.later(now)
	m.emit(effect{kind: noteFailed, err: err})
}

// later schedules a retry, with one event.
func (m *machine) later(now time.Time) {
	m.failures++
	m.most = 1
	m.retry = now.Add(m.backoff(m.failures))
}

// abort ends an operation without an outcome. Held events are retried later.
func (m *machine) abort(now time.Time) {
	if m.doing != nil {
		m.later(now)
	}
	m.doing, m.offered = nil, nil
}
