package observe

import "log/slog"

// Once receives the results of an inbox's checks. Every hook may be nil. Hooks must return at
// once; they run inside the caller's transaction, and run again if that is retried.
type Once struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Duplicate  func(OnceMessage)
	Mismatched func(OnceMessage)
	Gap        func(OnceGap)
	Cleaned    func(OnceCleaned)
}

// OnceMessage reports a message that did not run: its effect exists already, or its payload
// differs from the recorded one.
type OnceMessage struct {
	Consumer   string
	ID         string // may be empty for one with a sequence number
	Key        string // of its sequence; empty without one
	Epoch, Seq int64  // Seq is 0 without one
}

// OnceGap reports a message that came before an earlier one of its key.
type OnceGap struct {
	Consumer  string
	Key       string
	Epoch     int64
	Want, Got int64 // sequence numbers
}

// OnceCleaned reports that old records were deleted, or could not be.
type OnceCleaned struct {
	Consumer   string
	Rows       int64 // that were deleted, 0 where a whole generation was dropped
	Generation int64 // that is written from now on; 0 where rows were deleted
	Err        error
}
