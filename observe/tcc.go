package observe

import (
	"log/slog"
	"time"
)

// TCC receives the events of TCC transactions. Every hook may be nil. Hooks must return at
// once and must not call the engine that reports.
type TCC struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Decided func(TCCDecided)
	Tried   func(TCCTried)
	Ended   func(TCCEnded)
	Dead    func(TCCDead)
	// Mismatched and Reconciled are called by one of the processes that serve a journal.
	Mismatched func(TCCMismatched)
	Reconciled func(Reconciled)
}

// TCCDecided reports that this process made a decision, and that it is durable.
type TCCDecided struct {
	Transaction, Type string
	Decision          string // confirm or cancel
	Reason            string // to cancel
}

// TCCTried reports that a call of a branch failed.
type TCCTried struct {
	Transaction, Type, Branch string
	Operation                 string // try, confirm or cancel
	Attempt                   int    // from 1, counted by this process
	Err                       error
	Again                     time.Duration // when it is repeated; 0 if it is not
}

// TCCEnded reports that a transaction reached a final state, CONFIRMED or CANCELLED.
type TCCEnded struct {
	Transaction, Type, State string
}

// TCCDead reports that branches refuse the decision, or seem to crash their callers, and
// that the transaction waits for an operator. It is repeated.
type TCCDead struct {
	Transaction, Type string
	Decision          string // confirm or cancel
	Branches          []string
	Halted            string // why calls stopped, if owners crash; Branches are then the unfinished ones
}

// TCCMismatched reports that a branch of an ended transaction contradicts its outcome, or
// could not be asked.
type TCCMismatched struct {
	Transaction, Type, Branch string
	Decision                  string // confirm or cancel
	Refused                   bool   // the resource refuses the decision; else it could not be asked
	Err                       error
}
