package observe

import (
	"log/slog"
	"time"
)

// Version receives what happens to optimistic updates. Every hook may be nil.
// Hooks must return at once; several updates may call them at the same time.
type Version struct {
	// Log receives the failures whose hook is nil. Nil means slog.Default; [Silent] disables
	// logging.
	Log *slog.Logger

	Attempted func(VersionAttempted)
	Retrying  func(VersionRetrying)
	Exhausted func(VersionExhausted)
}

// VersionAttempted: one attempt of an update is over.
type VersionAttempted struct {
	Name     string // the entity
	Attempt  int    // from 1
	Conflict bool   // another writer was faster, so that nothing was done
	Err      error  // nil if the update is done
}

// VersionRetrying: an update waits, and is then attempted again unless its context ends.
type VersionRetrying struct {
	Name    string
	Attempt int // the one that failed
	Delay   time.Duration
	Err     error // of that attempt
}

// VersionExhausted: the last attempt that an update had met a conflict too.
type VersionExhausted struct {
	Name      string
	Attempts  int
	HandedOff bool // Options.HandOff takes it from here
}
