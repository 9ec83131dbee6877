package observe

import (
	"log/slog"
	"time"
)

// RowLock receives the events of row lock scopes. Every hook may be nil. Hooks must return at
// once.
type RowLock struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Locked func(RowsLocked)
	// Slow is called while the scope is still open.
	Slow     func(RowsSlow)
	Released func(RowsReleased)
}

// RowsLocked reports that the rows are locked, or could not be.
type RowsLocked struct {
	Table string
	Asked int           // rows that were asked for
	Rows  int           // rows that were locked
	Wait  time.Duration // from the request to the answer
	Err   error
}

// RowsSlow reports that rows are locked for longer than they should be.
type RowsSlow struct {
	Table string
	Rows  int
	Held  time.Duration // so far
	Max   time.Duration // after which the scope is ended
}

// RowsReleased reports that the transaction that held the rows has ended.
type RowsReleased struct {
	Table string
	Rows  int
	Held  time.Duration
	Err   error // nil if it was committed
}
