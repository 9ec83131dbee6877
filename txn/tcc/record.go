package tcc

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. A transaction of Run begins with its tried branches and the decision, in one
// append. A transaction of Submit begins with an open record and its requests; the append of the
// decision has the holds.
const (
	recordOpen     = "open"     // by Submit: the run has begun; it decides until a time
	recordTried    = "tried"    // a branch: its request and hold
	recordHeld     = "held"     // after open: the outcome of the try of a branch
	recordDecide   = "decide"   // Step is confirm or cancel; one, ever
	recordDone     = "done"     // the branch is confirmed
	recordUndone   = "undone"   // the branch is cancelled
	recordDead     = "dead"     // the branch has refused the decision
	recordFailing  = "failing"  // the number of failed calls of the branch, which are repeated
	recordTaken    = "taken"    // it was taken over while branches were called
	recordHalted   = "halted"   // it was taken over too often: an operator must act
	recordRemind   = "remind"   // a dead letter was reported again
	recordRetry    = "retry"    // by an operator: Step, or all dead branches, are called again
	recordSkip     = "skip"     // by an operator: Step is not called again
	recordResolved = "resolved" // by an operator: it has ended without further calls
	recordEnd      = coordinator.RecordEnd
)

// trying is the data of a tried record.
type trying struct {
	Resource string          `json:"resource"`
	Request  json.RawMessage `json:"request"`
	Hold     json.RawMessage `json:"hold,omitempty"`    // absent if it is unknown
	Refused  bool            `json:"refused,omitempty"` // it has no hold to cancel
}

// deciding is the data of a decide record.
type deciding struct {
	Reason string `json:"reason,omitempty"`
}

// why is the data of dead, failing and halted records.
type why struct {
	Error    string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

func marshal(v any) (json.RawMessage, error) { return coordinator.Marshal(v) }

// decided returns the records of the first append of a transaction of Run.
func decided(d Decision, reason string, tries []try) []journal.Entry {
	var entries []journal.Entry
	for _, t := range tries {
		entries = append(entries, record(recordTried, t.branch, trying{Resource: t.resource, Request: t.request, Hold: t.hold, Refused: t.refused}))
	}
	return append(entries, record(recordDecide, string(d), deciding{Reason: reason}))
}

// records reads and changes transactions in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: "tcc", With: machine.with,
	State:   func(m machine) State { return m.state() },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return t.State.outcome(t.Head) }}

func truncated(err error) string { return coordinator.Truncate(err.Error(), coordinator.MaxReason) }
