package saga

import (
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. Those of one append stand in the journal together or not at all,
// unless they are more than one append takes: then each part is right by itself.
const (
	recordBegin    = "begin"    // the input and the deadline
	recordSent     = "sent"     // from here on the step may have happened; names its undo
	recordNever    = "never"    // it has not been called since it was sent, and will not be
	recordDone     = "done"     // the step's output
	recordFailed   = "failed"   // the step was given up
	recordTried    = "tried"    // it failed so often, and is tried again
	recordTaken    = "taken"    // taken over while something was called and not answered
	recordHalted   = "halted"   // taken over so often that a person has to look
	recordDecide   = "decide"   // Step is commit or abort; one at most
	recordUndone   = "undone"   //
	recordDead     = "dead"     // the undo was given up
	recordRemind   = "remind"   // a dead letter was reported again
	recordRetry    = "retry"    // by an operator, as are the next four
	recordSkip     = "skip"     //
	recordSettle   = "settle"   // the outcome of a step is known; the next record has it
	recordNow      = "now"      // what is waited for is over
	recordSignal   = "signal"   // Step is its name; one of each name at most
	recordCrossed  = "crossed"  // a call with an input before an edit was done
	recordLater    = "later"    // its start is put off
	recordFinished = "finished" // all is settled, but who wants to know has not been called yet
	recordResolved = "resolved" // it is over, whatever is left
	recordEnd      = coordinator.RecordEnd
)

const (
	decideCommit = "commit"
	decideAbort  = "abort"
)

// begun is the data of a begin record.
type begun struct {
	Input    json.RawMessage `json:"input"`
	Deadline int64           `json:"deadline,omitempty"` // milliseconds since 1970
	Start    int64           `json:"start,omitempty"`    // nothing is called before: milliseconds since 1970
	Notify   bool            `json:"notify,omitempty"`   // its end is to be reported before it has ended
}

// sending is the data of a sent record, whose Step is the step's key.
type sending struct {
	Stage int             `json:"stage"`           // from 1
	Of    string          `json:"of,omitempty"`    // the step, if the key is not its name
	At    string          `json:"at,omitempty"`    // its index, if it has one
	Undo  string          `json:"undo,omitempty"`  // what takes it back
	Pivot bool            `json:"pivot,omitempty"` //
	Until int64           `json:"until,omitempty"` // of a wait: milliseconds since 1970
	For   bool            `json:"for,omitempty"`   // it waits for the signal of its key
	Input json.RawMessage `json:"input,omitempty"` // of its own; else the saga's
}

// why is the data of failed, decide, dead, tried and crossed records.
type why struct {
	Unknown  bool           `json:"unknown,omitempty"`  // a failed step may have happened
	Error    string         `json:"error,omitempty"`    //
	Attempts int            `json:"attempts,omitempty"` // calls that failed
	By       map[string]int `json:"by,omitempty"`       // of them, by class
	Calls    int            `json:"calls,omitempty"`    // those that were made
	Next     int64          `json:"next,omitempty"`     // when it is tried again: milliseconds since 1970
	Parked   bool           `json:"parked,omitempty"`   // nothing is called before Next
	Former   int            `json:"former,omitempty"`   // the input that a target knows, from 1, of those before edits; 0 if it has not said
}

// note is the data of an operator's records.
type note struct {
	By
	Input json.RawMessage `json:"input,omitempty"` // of the step from now on
}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

// begin is the record that makes a saga.
func begin(input json.RawMessage, deadline, start time.Time, notify bool) journal.Entry {
	return record(recordBegin, "", begun{Input: input, Deadline: millis(deadline), Start: millis(start), Notify: notify})
}

// millis returns a time for records; 0 is none.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// timeOf converts back from millis.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// records reads and changes sagas in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: protocol, With: machine.with,
	State:   func(m machine) State { return m.state },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return outcome(t.Head, &t.State) }}

// longestTried is the most bytes of the error of a call that is repeated.
const longestTried = coordinator.MaxFailing

func truncated(err error) string { return coordinator.Truncate(err.Error(), coordinator.MaxReason) }

func truncate(text string, most int) string { return coordinator.Truncate(text, most) }

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

// fate is the state of a step that was sent.
type fate int

const (
	inFlight fate = iota // it may be called
	done
	refused // not done, and never will be
	unknown // given up; it may be done
	undone
	dead
	skipped // by an operator
)

var fates = [...]string{inFlight: "sent", done: "done", refused: "refused", unknown: "unknown", undone: "undone", dead: "dead", skipped: "skipped"}

func (f fate) String() string { return fates[f] }

// progress is a step that was sent.
type progress struct {
	key     string // its own in the saga
	of, at  string // index, as calls name it
	stage   int
	undo    string // empty if there is nothing to undo
	pivot   bool
	wait    bool            // it is a wait, not a call
	signal  bool            // it waits for the signal of its key
	until   time.Time       // when the wait ends; zero is never
	over    bool            // an operator has ended the wait
	input   json.RawMessage // nil if it is the saga's
	edited  bool            // by an operator
	former  []formerInput   // inputs before its edits, oldest first
	crossed string          // how a call crossed an edit; empty if none did

	fate            fate
	was             fate // of a dead undo: the fate before
	abortedInFlight bool // in flight at the decision to abort
	output          json.RawMessage
	err             string
	attempts        int            // failed ones since the last long wait
	by              map[string]int // failed ones by class
	calls           int            // that were made
	lost            int            // made, and not answered before their owner was gone
	next            time.Time      // when the next call is due
	parked          bool           // no call was made since that was recorded
}

// formerInput is an input of a step before an edit.
type formerInput struct {
	input  json.RawMessage // nil if it is the saga's
	edited bool
}

// undoable reports whether the step is still to be undone.
func (p *progress) undoable() bool { return p.undo != "" && (p.fate == done || p.fate == unknown) }
