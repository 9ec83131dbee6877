package observe

import (
	"log/slog"
	"time"
)

// TwoPC receives what happens to transactions of two-phase commit. Every hook may be
// nil. Hooks must return at once and must not call the manager that reports.
type TwoPC struct {
	// Log receives the failures whose hook is nil. Nil means slog.Default; [Silent] disables
	// logging.
	Log *slog.Logger

	Decided   func(TwoPCDecided)
	Tried     func(TwoPCTried)
	Ended     func(TwoPCEnded)
	Heuristic func(TwoPCHeuristic)
	Halted    func(TwoPCHalted)
	Scanned   func(TwoPCScanned)
	Orphan    func(TwoPCOrphan)
}

// TwoPCDecided: a decision is durable. An abort by the manager that ran the
// transaction leaves no record, and is reported all the same.
type TwoPCDecided struct {
	Transaction string // as participants know it
	Commit      bool
	Reason      string // of an abort
}

// TwoPCTried: a commit or a rollback of a branch did not succeed, and is repeated.
type TwoPCTried struct {
	Transaction, Participant string
	Commit                   bool
	Attempt                  int // from 1, counted by this manager
	Err                      error
	Again                    time.Duration // when it is repeated; 0 if it is left to the orphan scan
}

// TwoPCEnded: a transaction has reached a final state: COMMITTED or RESOLVED.
type TwoPCEnded struct {
	Transaction, State string
}

// TwoPCHeuristic: branches were finished against the decision, by a person or a
// system. The transaction waits for a person. It is reported repeatedly.
type TwoPCHeuristic struct {
	Transaction  string
	Participants []string
	Commit       bool  // what was decided
	Err          error // what the participant said, when it was found
}

// TwoPCHalted: owners of the transaction crashed, one after the other, while they told its
// participants to commit. Its branches stay prepared until a person has it go on. It is
// reported again and again.
type TwoPCHalted struct {
	Transaction  string
	Participants []string // that have not committed
	Reason       string
}

// TwoPCScanned: a participant was asked for what it has prepared. It is the gauge of
// what is in doubt there.
type TwoPCScanned struct {
	Participant string
	InDoubt     int           // branches that voted yes and wait, of this participant's namespace
	Oldest      time.Duration // since the first of them was prepared; 0 if there is none
	Blocked     int           // those whose decision cannot be had, because the journal does not answer
	BlockedFor  time.Duration // since the first of them was found so
	Err         error         // it could not be asked; the rest is zero
}

// TwoPCOrphan: a branch in doubt was found which nobody is known to finish.
type TwoPCOrphan struct {
	Transaction, Participant string
	Age                      time.Duration // since it was prepared, or found
	// Verdict is what is done: commit, roll back, or nothing: blocked, too old,
	// foreign. The last two wait for a person.
	Verdict string
	Err     error // it was not done; the next scan tries again
}
