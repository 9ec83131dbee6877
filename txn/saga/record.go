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

// millis is a time as records have it; 0 is none.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// records reads and changes sagas in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: protocol, With: machine.with,
	State:   func(m machine) State { return m.state },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return outcome(t.Head, &t.State) }}

// longestTried is the most bytes of the error of a call that is repeated.
const longestTried = coordinator.MaxFailing

func said(err error) string { return coordinator.Cut(err.Error(), coordinator.MaxReason) }

func cut(text string, most int) string { return coordinator.Cut(text, most) }
