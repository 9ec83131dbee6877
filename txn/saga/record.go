package saga

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. Each append of the engine stands in the journal whole or not at
// all, so that what rides together is never seen apart.
const (
	recordBegin  = "begin"  // the input and the deadline
	recordSent   = "sent"   // from here on the step may have happened; names its undo
	recordDone   = "done"   // the step's output
	recordFailed = "failed" // the step was given up
	recordDecide = "decide" // Step is commit or abort; one at most
	recordUndone = "undone"
	recordDead   = "dead"   // the undo was given up
	recordRemind = "remind" // a dead letter was told of again
	recordEnd    = "end"
)

const (
	decideCommit = "commit"
	decideAbort  = "abort"
)

// begun is the data of a begin record.
type begun struct {
	Input    json.RawMessage `json:"input"`
	Deadline int64           `json:"deadline,omitempty"` // milliseconds since 1970
}

// sending is the data of a sent record.
type sending struct {
	Undo  string `json:"undo,omitempty"`
	Pivot bool   `json:"pivot,omitempty"`
}

// why is the data of failed, decide and dead records.
type why struct {
	Unknown bool   `json:"unknown,omitempty"` // a failed step may have happened
	Error   string `json:"error,omitempty"`
}

func record(kind, step string, data any) journal.Entry {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // only the types above and valid JSON come here
	}
	return journal.Entry{Kind: kind, Step: step, Data: text}
}

// begin is the first append of a saga: the first step's record rides with it.
func begin(p plan, input json.RawMessage, deadline time.Time) []journal.Entry {
	b := begun{Input: input}
	if !deadline.IsZero() {
		b.Deadline = deadline.UnixMilli()
	}
	return []journal.Entry{record(recordBegin, "", b), p.sent(0)}
}

func (p plan) sent(i int) journal.Entry {
	s := p.steps[i]
	return record(recordSent, s.name, sending{Undo: s.undo, Pivot: s.pivot})
}

// longest is the most bytes of an error that the journal keeps.
const longest = 1000

func said(err error) string {
	text := err.Error()
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
