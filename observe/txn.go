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

// WithDefaults returns h with hooks that log failures, and overdue or unscheduled
// transactions.
func (h *Coordinator) WithDefaults() *Coordinator {
	r := copyOf(h)
	OnNil(&r.Failed, r.Log, warn, whenFailed("coordinator failed", func(e CoordinatorFailed) error { return e.Err }))
	OnNil(&r.Foreign, r.Log, warn, always[CoordinatorForeign]("transaction of a type that this process does not know"))
	OnNil(&r.Hung, r.Log, loud, always[CoordinatorHung]("calls do not return, their shard is released without them"))
	OnNil(&r.Retained, r.Log, warn, func(e CoordinatorRetained) string {
		switch {
		case e.Err != nil:
			return "retention failed"
		case e.Unscheduled > 0:
			return "unfinished transactions are missing in the due index"
		}
		return ""
	})
	OnNil(&r.Swept, r.Log, warn, func(e CoordinatorSwept) string {
		switch {
		case e.Err != nil:
			return "sweep failed"
		case e.Overdue > 0:
			return "sweep found what is overdue"
		}
		return ""
	})
	return r
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

// Saga receives the events of sagas. Every hook may be nil. Hooks must return at once and must
// not call the engine that reports.
type Saga struct {
	// Log receives failures whose hook is nil: nil means slog.Default, [Silent] none.
	Log *slog.Logger

	Started func(SagaStarted)
	Tried   func(SagaTried)
	Ended   func(SagaEnded)
	Dead    func(SagaDead)
	Stuck   func(SagaStuck)
	Crossed func(SagaCrossed)
	// Mismatched and Reconciled are called by one of the processes that serve a journal.
	Mismatched func(SagaMismatched)
	Reconciled func(Reconciled)
}

// WithDefaults returns h with hooks that log failed calls, steps that do not succeed
// and dead letters.
func (h *Saga) WithDefaults() *Saga {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("saga step failed", func(e SagaTried) error { return e.Err }))
	OnNil(&r.Mismatched, r.Log, loud, always[SagaMismatched]("saga does not match its participants"))
	OnNil(&r.Reconciled, r.Log, warn, whenFailed("reconciliation not finished", func(e Reconciled) error { return e.Err }))
	OnNil(&r.Dead, r.Log, loud, always[SagaDead]("saga is a dead letter and waits for a person"))
	OnNil(&r.Crossed, r.Log, loud, always[SagaCrossed]("saga step was done with the input before its edit"))
	OnNil(&r.Stuck, r.Log, loud, always[SagaStuck]("saga step that must succeed keeps failing"))
	return r
}

// SagaStarted reports that a saga began. Attaching to a running one is not reported.
type SagaStarted struct {
	Saga, Type string
}

// SagaTried reports that a call of a step or of an undo did not succeed.
type SagaTried struct {
	Saga, Type, Step string
	Undo             bool // it was the step's undo
	Attempt          int  // from 1, counted by this engine
	Err              error
	Again            time.Duration // when it is repeated; 0 if it is not
}

// SagaEnded reports that a saga has reached a final state: SUCCEEDED, COMPENSATED, DEAD_LETTER
// or RESOLVED.
type SagaEnded struct {
	Saga, Type string
	State      string
	Reason     string // why it was undone
}

// SagaDead reports that a saga could not be undone completely, and waits for an operator. It is
// repeated.
type SagaDead struct {
	Saga, Type string
	Reason     string   // why it was to be undone
	Steps      []string // with abandoned undos
}

// SagaStuck reports that a step that must be done, because the pivot is or may be done, failed
// so often that an operator should look. The engine keeps retrying.
type SagaStuck struct {
	Saga, Type, Step string
	Attempts         int // that failed
	Err              error
}

// SagaCrossed reports that a call of a step or its undo was done with its old input, before an
// operator replaced the input. The target may have that call's effect, and may treat the call
// with the new input as its repetition. An operator must check.
type SagaCrossed struct {
	Saga, Type, Step string
	Undo             bool
	Final            bool   // confirmed by the target: the step is done with the input before the edit
	Before, After    string // the inputs, at most 500 bytes of each
	Err              error  // why the journal lacks this; nil if it has it, or the saga has ended
}

// SagaMismatched reports that a step's effect differs from the saga's outcome, or did until it
// was repaired, or could not be determined.
type SagaMismatched struct {
	Saga, Type, Step string
	Want, Got        string // present, absent or unsure
	Repaired         bool
	Err              error // of the check or the repair
}

// Reconciled reports that participants were asked about ended transactions. It is the gauge of
// effects that differ from the journal.
type Reconciled struct {
	Since    time.Time // sagas that ended earlier were not checked
	Wrong    int       // effects that still differ from the journal
	Repaired int       // that differed and were repaired
	Unknown  int       // that could not be determined
	Took     time.Duration
	Err      error // why it is not complete
}

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

// WithDefaults returns h with hooks that log failed calls and dead letters.
func (h *TCC) WithDefaults() *TCC {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("branch failed", func(e TCCTried) error { return e.Err }))
	OnNil(&r.Mismatched, r.Log, loud, always[TCCMismatched]("transaction does not match its participants"))
	OnNil(&r.Reconciled, r.Log, warn, whenFailed("reconciliation not finished", func(e Reconciled) error { return e.Err }))
	OnNil(&r.Dead, r.Log, loud, always[TCCDead]("transaction is a dead letter and waits for a person"))
	return r
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

// WithDefaults returns h with hooks that log failed calls, heuristic outcomes, orphans
// and participants that are blocked or cannot be scanned.
func (h *TwoPC) WithDefaults() *TwoPC {
	r := copyOf(h)
	OnNil(&r.Tried, r.Log, warn, whenFailed("branch failed", func(e TwoPCTried) error { return e.Err }))
	OnNil(&r.Heuristic, r.Log, loud, always[TwoPCHeuristic]("branches finished against the decision, the transaction waits for a person"))
	OnNil(&r.Halted, r.Log, loud, always[TwoPCHalted]("transaction is halted and waits for a person"))
	OnNil(&r.Orphan, r.Log, warn, always[TwoPCOrphan]("branch in doubt without a known coordinator"))
	OnNil(&r.Scanned, r.Log, warn, func(e TwoPCScanned) string {
		switch {
		case e.Err != nil:
			return "participant not scanned"
		case e.Blocked > 0:
			return "branches blocked, their decision cannot be read"
		}
		return ""
	})
	return r
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
