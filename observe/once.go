package observe

import "log/slog"

// Once receives what an inbox finds in what it is given. Every hook may be nil.
// Hooks must return at once; they run inside the user's transaction, and run
// again if that is run again.
type Once struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Duplicate  func(OnceMessage)
	Mismatched func(OnceMessage)
	Gap        func(OnceGap)
	Cleaned    func(OnceCleaned)
}

// OnceMessage is a message that was not run: its effect is there already, or its
// payload is not the one that was recorded for it.
type OnceMessage struct {
	Consumer   string
	ID         string // may be empty for one with a sequence number
	Key        string // of its sequence; empty without one
	Epoch, Seq int64  // Seq is 0 without one
}

// OnceGap: a message came before one that has to come first.
type OnceGap struct {
	Consumer  string
	Key       string
	Epoch     int64
	Want, Got int64 // sequence numbers
}

// OnceCleaned: old records were removed, or could not be.
type OnceCleaned struct {
	Consumer   string
	Rows       int64 // that were deleted, 0 where a whole generation was dropped
	Generation int64 // that is written from now on; 0 where rows were deleted
	Err        error
}
