package observe

import (
	"log/slog"
	"time"
)

// Version receives the events of optimistic updates. Every hook may be nil. Hooks must
// return at once; several updates may run them concurrently.
type Version struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Attempted func(VersionAttempted)
	Retrying  func(VersionRetrying)
	Exhausted func(VersionExhausted)
}

// VersionAttempted reports that an attempt of an update ended.
type VersionAttempted struct {
	Name     string // the entity
	Attempt  int    // from 1
	Conflict bool   // another writer was faster: nothing was changed
	Err      error  // nil if the update is done
}

// VersionRetrying reports that an update waits before its next attempt.
type VersionRetrying struct {
	Name    string
	Attempt int // the one that failed
	Delay   time.Duration
	Err     error // of that attempt
}

// VersionExhausted reports that the last attempt of an update met a conflict too.
type VersionExhausted struct {
	Name      string
	Attempts  int
	HandedOff bool // Options.HandOff continues the update
}
