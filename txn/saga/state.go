package saga

import (
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
)

// State is where a saga stands; see [coordinator.State].
type State = coordinator.State

// The states. RUNNING goes on to COMPLETING by a decision to commit, or to UNDOING
// by one to abort; a saga has one decision at most. An operator sends a DEAD_LETTER
// back to UNDOING, or ends it as RESOLVED.
const (
	Running     State = "RUNNING"              // undecided
	Completing  State = "COMPLETING"           // what is left is done, whatever happens
	Undoing     State = "UNDOING"              // what was done is undone
	Succeeded   State = "SUCCEEDED"            // each step is done, but for those that an operator has skipped
	Compensated State = "COMPENSATED"          // nothing is left of it but what needs no undo, or was skipped
	DeadLetter        = coordinator.DeadLetter // an undo was given up, or too many owners crashed: a person has to look
	Resolved          = coordinator.Resolved   // a dead letter that a person has closed
)

// States are all states of a saga.
var States = []State{Running, Completing, Undoing, Succeeded, Compensated, DeadLetter, Resolved}

// fate is what is known of a step that was sent.
type fate int

const (
	inFlight fate = iota // it may be called
	done
	refused // definitely not done, and to be done never
	unknown // given up, and perhaps done
	undone
	dead
	skipped // by an operator
)

var fates = [...]string{inFlight: "sent", done: "done", refused: "refused", unknown: "unknown", undone: "undone", dead: "dead", skipped: "skipped"}

func (f fate) String() string { return fates[f] }

// progress is a step that was sent.
type progress struct {
	key     string // its own in the saga
	of, at  string // the step and its index, as calls name them
	stage   int
	undo    string // empty if there is nothing to undo
	pivot   bool
	wait    bool            // it is a wait, not a call
	signal  bool            // it waits for the signal of its key
	until   time.Time       // when the wait ends; zero is never
	over    bool            // an operator has ended the wait
	input   json.RawMessage // nil if it is the saga's
	edited  bool            // by an operator
	former  []given         // what it was called with before its edits, the oldest first
	crossed string          // by which call the edit was; empty if by none

	fate     fate
	was      fate // of a dead undo: what was to be undone
	adrift   bool // in flight when it was decided to abort
	output   json.RawMessage
	err      string
	attempts int            // that failed before it was left alone for a while
	by       map[string]int // of them, by class
	calls    int            // that were made
	lost     int            // of them, that were not answered before their owner was gone
	next     time.Time      // when it is tried again
	parked   bool           // and nothing was called since that was written
}

// given is what a step was called with.
type given struct {
	input  json.RawMessage // nil if it is the saga's
	edited bool
}

// undoable reports whether the step is to be undone and not yet has been.
func (p *progress) undoable() bool { return p.undo != "" && (p.fate == done || p.fate == unknown) }
