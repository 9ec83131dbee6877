package twopc

import (
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. Each append stands in the journal whole or not at all.
const (
	recordDecide    = "decide"    // Step is commit or abort; the first record, and the only one of its kind
	recordDone      = "done"      // a branch was committed; written only where another one is heuristic
	recordHeuristic = "heuristic" // a branch was finished against the decision
	recordFailing   = "failing"   // a branch could not be committed so often, and is called again
	recordTaken     = "taken"     // it was taken over while branches were called
	recordHalted    = "halted"    // it was taken over so often that a person has to look
	recordRetry     = "retry"     // a person has it go on
	recordRemind    = "remind"    // a heuristic outcome was reported again
	recordResolved  = "resolved"  // a person has seen to it
	recordEnd       = coordinator.RecordEnd
)

// Decision is the outcome that a transaction is decided to have.
type Decision = coordinator.Decision

// The decisions.
const (
	Commit Decision = "commit"
	Abort  Decision = "abort"
)

// decided is the data of a decide record.
type decided struct {
	ID       string   `json:"id,omitempty"` // the user's; empty if who decided does not know it
	Run      string   `json:"run"`          // the run that is decided; every other one is to be rolled back
	Branches []string `json:"branches,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Actor    string   `json:"actor,omitempty"` // the person who decided; empty if it was an engine
}

// why is the data of heuristic, failing, halted, retry and resolved records. An operator's
// have the reason as the text if they are of versions before [By].
type why struct {
	Actor    string `json:"actor,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Text     string `json:"text,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
}

// records reads and changes transactions in a journal.
var records = coordinator.Records[machine, Outcome]{Protocol: protocol, With: machine.with,
	State:   func(m machine) State { return m.state },
	Outcome: func(t coordinator.Transaction[machine]) Outcome { return t.State.outcome(t.Head, t.Entries) }}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

func decide(d Decision, what decided) journal.Entry { return record(recordDecide, string(d), what) }

func end() journal.Entry { return journal.Entry{Kind: recordEnd} }

func said(text string) string { return coordinator.Truncate(text, coordinator.MaxReason) }
