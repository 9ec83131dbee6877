package observe

import (
	"log/slog"
	"time"
)

// TwoPC receives the events of two-phase commit. Every hook may be nil. Hooks must return at
// once and must not call the engine that reports.
type TwoPC struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Decided   func(TwoPCDecided)
	Tried     func(TwoPCTried)
	Ended     func(TwoPCEnded)
	Heuristic func(TwoPCHeuristic)
	Halted    func(TwoPCHalted)
	Scanned   func(TwoPCScanned)
	Orphan    func(TwoPCOrphan)
}

// TwoPCDecided reports that a decision is durable. An abort by the engine that ran the
// transaction is reported too, but leaves no record.
type TwoPCDecided struct {
	Transaction string // its name at participants
	Commit      bool
	Reason      string // of an abort
}

// TwoPCTried reports that a commit or a rollback of a branch failed.
type TwoPCTried struct {
	Transaction, Participant string
	Commit                   bool
	Attempt                  int // from 1, counted by this engine
	Err                      error
	Again                    time.Duration // when it is repeated; 0 if it is left to the orphan scan
}

// TwoPCEnded reports that a transaction reached a final state, COMMITTED or RESOLVED.
type TwoPCEnded struct {
	Transaction, State string
}

// TwoPCHeuristic reports branches that an operator or a system finished against the
// decision. The transaction waits for an operator. It is repeated.
type TwoPCHeuristic struct {
	Transaction  string
	Participants []string
	Commit       bool  // the decision
	Err          error // the participant's, when it was found
}

// TwoPCHalted reports that several owners of the transaction crashed while they committed
// its branches. Its branches stay prepared until an operator resumes it. It is repeated.
type TwoPCHalted struct {
	Transaction  string
	Participants []string // that have not committed
	Reason       string
}

// TwoPCScanned reports that a participant was asked for its prepared branches. It is the
// gauge of those in doubt.
type TwoPCScanned struct {
	Participant string
	InDoubt     int           // prepared branches of this participant's namespace
	Oldest      time.Duration // since the first of them was prepared; 0 if there is none
	Blocked     int           // those without a decision, because the journal does not answer
	BlockedFor  time.Duration // since the first of them was found so
	Err         error         // why it could not be asked; the rest is zero
}

// TwoPCOrphan reports a branch in doubt that no known process will finish.
type TwoPCOrphan struct {
	Transaction, Participant string
	Age                      time.Duration // since it was prepared, or found
	// Verdict is the action: commit, roll back, or nothing: blocked, too old, foreign. The
	// last two wait for an operator.
	Verdict string
	Err     error // why it failed; the next scan tries again
}
