package tcc

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. A transaction of Run begins with what was tried and the decision,
// in one append. One of Submit begins with an open record and its requests; the append
// of the decision has what they hold.
const (
	recordOpen     = "open"     // by Submit: the run has begun, and may be decided until a time
	recordTried    = "tried"    // a branch: its request, and what it holds
	recordHeld     = "held"     // after open: the outcome of the try of a branch
	recordDecide   = "decide"   // Step is confirm or cancel; one, ever
	recordDone     = "done"     // the branch is confirmed
	recordUndone   = "undone"   // the branch is cancelled
	recordDead     = "dead"     // the branch has refused what it may not refuse
	recordFailing  = "failing"  // calls of the branch failed so often, and are repeated
	recordTaken    = "taken"    // it was taken over while branches were called
	recordHalted   = "halted"   // it was taken over so often that a person has to look
	recordRemind   = "remind"   // a dead letter was reported again
	recordRetry    = "retry"    // by a person: Step, or all that is dead, is called again
	recordSkip     = "skip"     // by a person: Step is not called any more
	recordResolved = "resolved" // by a person: it is taken for settled as it is
	recordEnd      = "end"
)

// trying is the data of a tried record.
type trying struct {
	Resource string          `json:"resource"`
	Request  json.RawMessage `json:"request"`
	Hold     json.RawMessage `json:"hold,omitempty"`    // none: it is not known
	Refused  bool            `json:"refused,omitempty"` // it holds nothing, and nothing is to be cancelled
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

// order is the data of what a person has written.
type order struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

func record(kind, step string, data any) journal.Entry {
	text, err := marshal(data)
	if err != nil {
		panic(err) // only the types above and valid JSON come here
	}
	return journal.Entry{Kind: kind, Step: step, Data: text}
}

// marshal is json.Marshal without what it does for pages of HTML: a hold must not become
// longer than it was.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// decided is the first append of a transaction of Run.
func decided(d Decision, reason string, tries []try) []journal.Entry {
	var entries []journal.Entry
	for _, t := range tries {
		entries = append(entries, record(recordTried, t.branch, trying{Resource: t.resource, Request: t.request, Hold: t.hold, Refused: t.refused}))
	}
	return append(entries, record(recordDecide, string(d), deciding{Reason: reason}))
}

// longest is the most bytes of an error that the journal keeps.
const longest = 1000

// longestFailing is the same of a call that is repeated.
const longestFailing = 500

func said(err error) string { return cut(err.Error(), longest) }

// cut is a text as the journal keeps it.
func cut(text string, longest int) string {
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
