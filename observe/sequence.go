package observe

import (
	"log/slog"
	"time"
)

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
