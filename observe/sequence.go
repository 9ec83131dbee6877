package observe

import (
	"log/slog"
	"time"
)

// Sequence receives what happens to the keys of a sequencer. Every hook may be nil.
// Hooks must return at once and must not call the sequencer that reports.
type Sequence struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	// Gap: events are missing, and are waited for.
	Gap func(SequenceGap)
	// Overdue: they did not come in time, and will be fetched, or their hole be
	// recorded, or the key be halted. This is the alert: it comes before every hole
	// that is recorded, and again if a crash falls between.
	Overdue func(SequenceGap)
	// Recorded: their hole is durable, and the key goes on.
	Recorded func(SequenceGap)
	// Halted: the key stands still until they come or an operator resumes it.
	Halted func(SequenceGap)
	// Late: an event of a recorded hole came, and was delivered as late.
	Late func(SequenceEvent)
	// Dropped: an event was delivered before, or is of an epoch that has passed.
	Dropped func(SequenceEvent)
	// Failed: what was to be done for a key failed; it is tried again.
	Failed func(SequenceFailed)
}

// SequenceGap is missing events of a key.
type SequenceGap struct {
	Stream, Key string
	Epoch       int64
	From, To    int64         // both are missing, and all between
	Waited      time.Duration // since the gap was noticed
}

// SequenceEvent is one event.
type SequenceEvent struct {
	Stream, Key string
	Epoch, Seq  int64
	Stale       bool // its epoch has passed
}

// SequenceFailed is something that failed.
type SequenceFailed struct {
	Stream, Key string
	Failures    int // in a row
	Err         error
}
