package observe

import (
	"log/slog"
	"time"
)

// TCC receives what happens to transactions that are tried, then confirmed or
// cancelled. Every hook may be nil. Hooks must return at once and must not call the
// manager that reports.
type TCC struct {
	// Log receives the failures whose hook is nil. Nil means slog.Default; [Silent] disables
	// logging.
	Log *slog.Logger

	Decided func(TCCDecided)
	Tried   func(TCCTried)
	Ended   func(TCCEnded)
	Dead    func(TCCDead)
	// Mismatched and Reconciled are called by one of the processes that serve a journal.
	Mismatched func(TCCMismatched)
	Reconciled func(Reconciled)
}

// TCCDecided: the decision on a transaction is durable, and was made here.
type TCCDecided struct {
	Transaction, Type string
	Decision          string // confirm or cancel
	Reason            string // to cancel
}

// TCCTried: a call of a branch did not succeed.
type TCCTried struct {
	Transaction, Type, Branch string
	Operation                 string // try, confirm or cancel
	Attempt                   int    // from 1, counted by this process
	Err                       error
	Again                     time.Duration // when it is repeated; 0 if it is not
}

// TCCEnded: a transaction has reached a final state, CONFIRMED or CANCELLED.
type TCCEnded struct {
	Transaction, Type, State string
}

// TCCDead: branches refuse to do what was decided, or seem to crash who calls them, and
// wait for a person. It is reported again and again.
type TCCDead struct {
	Transaction, Type string
	Decision          string // confirm or cancel
	Branches          []string
	Halted            string // why nothing is called any more, if owners crash; Branches are those that are left
}

// TCCMismatched: a branch of a transaction that has ended does not bear out what was
// done, or could not be asked.
type TCCMismatched struct {
	Transaction, Type, Branch string
	Decision                  string // confirm or cancel
	Refused                   bool   // the resource refuses what it is to have done; else it could not be asked
	Err                       error
}
