package observe

import (
	"log/slog"
	"time"
)

// Saga receives what happens to sagas. Every hook may be nil. Hooks must return at
// once and must not call the engine that reports.
type Saga struct {
	// Log receives the failures whose hook is nil; nil means slog.Default, [Silent]
	// nobody.
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

// SagaStarted: a saga was begun. Attaching to one is not told.
type SagaStarted struct {
	Saga, Type string
}

// SagaTried: a call of a step or of an undo did not succeed.
type SagaTried struct {
	Saga, Type, Step string
	Undo             bool // it was the step's undo
	Attempt          int  // from 1, counted by this engine
	Err              error
	Again            time.Duration // when it is repeated; 0 if it is not
}

// SagaEnded: a saga has reached a final state: SUCCEEDED, COMPENSATED,
// DEAD_LETTER or RESOLVED.
type SagaEnded struct {
	Saga, Type string
	State      string
	Reason     string // why it was undone
}

// SagaDead: a saga could not be undone wholly, and waits for a person. It is reported
// repeatedly.
type SagaDead struct {
	Saga, Type string
	Reason     string   // why it was to be undone
	Steps      []string // whose undos were given up
}

// SagaStuck: a step that has to be done, because the pivot is or may be, was tried so
// often without success that a person should look. It is tried on.
type SagaStuck struct {
	Saga, Type, Step string
	Attempts         int // that failed
	Err              error
}

// SagaCrossed: a call of a step, or of its undo, was done with the input that it had before
// an operator gave it another one. Its target may have that call's effect, and take the
// call with the new input for a repetition of it: a person has to look.
type SagaCrossed struct {
	Saga, Type, Step string
	Undo             bool
	Final            bool   // the target has said so: the step is done with the input before, whatever the edit
	Before, After    string // the inputs, at most 500 bytes of each
	Err              error  // why the journal does not have it; nil if it does, or the saga has ended
}

// SagaMismatched: a step's effect is not what its saga has ended with, or was not until
// it was repaired, or could not be found out.
type SagaMismatched struct {
	Saga, Type, Step string
	Want, Got        string // present, absent or unsure
	Repaired         bool
	Err              error // of the check or the repair
}

// Reconciled: participants were asked about what had ended. It is the gauge of effects
// that are not what the journal says.
type Reconciled struct {
	Since    time.Time // what ended before was not looked at
	Wrong    int       // effects that are not what the journal says
	Repaired int       // that were not, and are now
	Unknown  int       // that could not be found out
	Took     time.Duration
	Err      error // it was not finished
}
