package observe

import (
	"log/slog"
	"time"
)

// Coordinator receives the failures of a coordinator outside the calls of its transactions.
// Every hook may be nil. Hooks must return at once and must not call the coordinator that
// reports.
type Coordinator struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Failed  func(CoordinatorFailed)
	Foreign func(CoordinatorForeign)
	Hung    func(CoordinatorHung)
	// Retained and Swept are called by one of the processes that serve a journal.
	Retained func(CoordinatorRetained)
	Swept    func(CoordinatorSwept)
}

// CoordinatorRetained reports that old ended transactions were deleted from the journal. It is
// also the gauge of unfinished ones.
type CoordinatorRetained struct {
	Forgotten   int           // transactions that were removed
	Unfinished  int           // transactions that have not ended
	Oldest      time.Duration // since the first of them began; 0 if there is none
	Excepted    int           // old ones that participants must remember
	Unscheduled int           // unfinished ones that no coordinator would find: a defect
	Took        time.Duration
	Err         error // the rest may be incomplete
}

// CoordinatorSwept reports that a sweep of the retention has run.
type CoordinatorSwept struct {
	Name    string
	Removed int
	Overdue int           // kept, although it should have ended
	Oldest  time.Duration // for how long the first of them is overdue
	Took    time.Duration
	Err     error
}

// CoordinatorFailed reports that a transaction could not be driven, or a shard not be read. The
// coordinator retries.
type CoordinatorFailed struct {
	Transaction string // empty if it concerns the shard
	Shard       int
	Err         error
}

// CoordinatorForeign reports a due transaction of a type that this process does not know. An
// owner of the shard with that type must drive it. The event is repeated while the transaction
// is due.
type CoordinatorForeign struct {
	Transaction, Type string
	Shard             int
	// Given counts how often this process passed the shard on for it, without effect: if it
	// rises, no process knows the type.
	Given int
}

// CoordinatorHung reports that calls of a transaction did not return in time after serving
// ended. The shard is released without them; their results are not recorded.
type CoordinatorHung struct {
	Transaction string
	Shard       int
	After       time.Duration
}
