package observe

import (
	"log/slog"
	"time"
)

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
