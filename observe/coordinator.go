package observe

import (
	"log/slog"
	"time"
)

// Coordinator receives what goes wrong in a coordinator beside the calls of its
// transactions. Every hook may be nil. Hooks must return at once and must not call
// the coordinator that reports.
type Coordinator struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
	Log *slog.Logger

	Failed  func(CoordinatorFailed)
	Foreign func(CoordinatorForeign)
	Hung    func(CoordinatorHung)
	// Retained and Swept are called by one of the processes that serve a journal.
	Retained func(CoordinatorRetained)
	Swept    func(CoordinatorSwept)
}

// CoordinatorRetained: what has ended long ago was removed from the journal. It is the
// gauge of what is unfinished.
type CoordinatorRetained struct {
	Forgotten   int           // transactions that were removed
	Unfinished  int           // transactions that have not ended
	Oldest      time.Duration // since the first of them began; 0 if there is none
	Excepted    int           // old ones that participants must remember
	Unscheduled int           // unfinished ones that nobody would ever look at: a defect
	Took        time.Duration
	Err         error // the rest may be incomplete
}

// CoordinatorSwept: a sweep of the retention has run.
type CoordinatorSwept struct {
	Name    string
	Removed int
	Overdue int           // what should have ended, and was left alone
	Oldest  time.Duration // for how long the first of them is overdue
	Took    time.Duration
	Err     error
}

// CoordinatorFailed: a transaction could not be driven, or a shard not be looked at.
// It is tried again.
type CoordinatorFailed struct {
	Transaction string // empty if it concerns the shard
	Shard       int
	Err         error
}

// CoordinatorForeign: a transaction is due whose type this process does not know. It is
// left to an owner of the shard that knows it, and reported again while it is due.
type CoordinatorForeign struct {
	Transaction, Type string
	Shard             int
	// Given is how often this process has given the shard to others for it, without effect:
	// if it rises, no process knows the type.
	Given int
}

// CoordinatorHung: calls of a transaction did not return in time after serving ended. The
// shard is released without them; what they return is not recorded.
type CoordinatorHung struct {
	Transaction string
	Shard       int
	After       time.Duration
}
