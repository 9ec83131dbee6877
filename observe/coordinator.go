package observe

import "log/slog"

// Coordinator receives what goes wrong in a coordinator beside the calls of its
// transactions. Every hook may be nil. Hooks must return at once and must not call
// the coordinator that reports.
type Coordinator struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Failed func(CoordinatorFailed)
}

// CoordinatorFailed: a transaction could not be driven, or a shard not be looked at.
// It is tried again.
type CoordinatorFailed struct {
	Transaction string // empty if it concerns the shard
	Shard       int
	Err         error
}
