package twopc

import (
	"encoding/json"
	"strings"

	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. Each append stands in the journal whole or not at all.
const (
	recordDecide    = "decide"    // Step is commit or abort; the first record, and the only one of its kind
	recordDone      = "done"      // a branch was committed; written only where another one is heuristic
	recordHeuristic = "heuristic" // a branch was finished otherwise than decided
	recordFailing   = "failing"   // a branch could not be committed so often, and is called again
	recordTaken     = "taken"     // it was taken over while branches were called
	recordHalted    = "halted"    // it was taken over so often that a person has to look
	recordRetry     = "retry"     // a person has it go on
	recordRemind    = "remind"    // a heuristic outcome was reported again
	recordResolved  = "resolved"  // a person has seen to it
	recordEnd       = "end"
)

// Decision is the outcome of a transaction.
type Decision string

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

// why is the data of heuristic, failing, halted, retry and resolved records.
type why struct {
	Actor    string `json:"actor,omitempty"`
	Text     string `json:"text"`
	Attempts int    `json:"attempts,omitempty"`
}

func record(kind, step string, data any) journal.Entry {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // only the types above come here
	}
	return journal.Entry{Kind: kind, Step: step, Data: text}
}

func decide(d Decision, what decided) journal.Entry { return record(recordDecide, string(d), what) }

func end() journal.Entry { return journal.Entry{Kind: recordEnd} }

// longest is the most bytes of a reason that the journal keeps.
const longest = 1000

// longestFailing is the same of a call that is repeated.
const longestFailing = 500

func said(text string) string { return cut(text, longest) }

// cut is a text as the journal keeps it.
func cut(text string, longest int) string {
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
