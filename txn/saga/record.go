package saga

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Kinds of records. One append writes all of its records or none. If there are too many for
// one append, each prefix is valid.
const (
	recordBegin    = "begin"    // the input and the deadline
	recordSent     = "sent"     // the step may have been called; names its undo
	recordNever    = "never"    // the sent step was not called, and will not be
	recordDone     = "done"     // the step's output
	recordFailed   = "failed"   // the step was given up
	recordTried    = "tried"    // the number of failed calls of the step, which are repeated
	recordTaken    = "taken"    // it was taken over while calls were not answered
	recordHalted   = "halted"   // it was taken over too often: an operator must act
	recordDecide   = "decide"   // Step is commit or abort; at most one
	recordUndone   = "undone"   //
	recordDead     = "dead"     // the undo was given up
	recordRemind   = "remind"   // a dead letter was reported again
	recordRetry    = "retry"    // by an operator, as are the next three
	recordSkip     = "skip"     //
	recordSettle   = "settle"   // the outcome of a step is known; the next record has it
	recordNow      = "now"      // the wait has ended
	recordSignal   = "signal"   // Step is its name; at most one of each name
	recordCrossed  = "crossed"  // a call with an input before an edit was done
	recordLater    = "later"    // its start is postponed
	recordFinished = "finished" // no call is left except that of OnEnd
	recordResolved = "resolved" // by an operator: the dead letter is closed
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
	Start    int64           `json:"start,omitempty"`    // of the first call, at the earliest: milliseconds since 1970
	Notify   bool            `json:"notify,omitempty"`   // OnEnd is called before the end record
	// Run is random. Two starts never write the same record: the journal would tell both that they began
	// the saga, and the later one would not know of the calls of the first.
	Run uint64 `json:"run,omitempty"`
}

// sending is the data of a sent record, whose Step is the step's key.
type sending struct {
	Stage int             `json:"stage"`           // from 1
	Of    string          `json:"of,omitempty"`    // the step, if the key is not its name
	At    string          `json:"at,omitempty"`    // its index, if it has one
	Undo  string          `json:"undo,omitempty"`  // the name of its undo
	Pivot bool            `json:"pivot,omitempty"` //
	Until int64           `json:"until,omitempty"` // of a wait: milliseconds since 1970
	For   bool            `json:"for,omitempty"`   // it waits for the signal of its key
	Input json.RawMessage `json:"input,omitempty"` // its own; else the saga's
}

// decodeSending decodes the data of a sent record. It keeps the results of data that sagas share: those
// without an input or a time. JSON would take a tenth of the time of a saga.
func decodeSending(data []byte) (s sending, err error) {
	sendings.RLock()
	s, known := sendings.decoded[string(data)]
	sendings.RUnlock()
	if known {
		return s, nil
	}
	if err = json.Unmarshal(data, &s); err == nil && s.Input == nil && s.Until == 0 {
		sendings.Lock()
		defer sendings.Unlock()
		if len(sendings.decoded) < maxSendings {
			sendings.decoded[string(data)] = s
		}
	}
	return s, err
}

const maxSendings = 1000

var sendings = struct {
	sync.RWMutex
	decoded map[string]sending // by their data
}{decoded: map[string]sending{}}

// why is the data of failed, decide, dead, tried and crossed records.
type why struct {
	Unknown  bool           `json:"unknown,omitempty"`  // a failed step may have been done
	Error    string         `json:"error,omitempty"`    //
	Attempts int            `json:"attempts,omitempty"` // calls that failed
	By       map[string]int `json:"by,omitempty"`       // of them, by class
	Calls    int            `json:"calls,omitempty"`    // calls that were made
	Next     int64          `json:"next,omitempty"`     // time of the next call: milliseconds since 1970
	Parked   bool           `json:"parked,omitempty"`   // no call is made before Next
	Former   int            `json:"former,omitempty"`   // the number, from 1, of the former input that the target has applied; 0 if unknown
}

// note is the data of an operator's records.
type note struct {
	By
	Input json.RawMessage `json:"input,omitempty"` // of the step from now on
}

func record(kind, step string, data any) journal.Entry { return coordinator.Record(kind, step, data) }

// begin returns the begin record of a saga.
func begin(input json.RawMessage, deadline, start time.Time, notify bool) journal.Entry {
	return record(recordBegin, "", begun{Input: input, Deadline: millis(deadline), Start: millis(start), Notify: notify, Run: 1 + rand.Uint64N(1<<53-1)})
}

// millis returns a time for records; 0 means none.
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

func truncated(err error) string { return coordinator.Truncate(err.Error(), coordinator.MaxReason) }

// State is the state of a saga; see [coordinator.State].
type State = coordinator.State

// The states. RUNNING becomes COMPLETING by a decision to commit, or UNDOING by one to abort; a
// saga has at most one decision. An operator changes a DEAD_LETTER to UNDOING or RESOLVED.
const (
	Running     State = "RUNNING"              // undecided
	Completing  State = "COMPLETING"           // the remaining steps are called until they are done
	Undoing     State = "UNDOING"              // completed steps are undone
	Succeeded   State = "SUCCEEDED"            // each step is done, or was skipped by an operator
	Compensated State = "COMPENSATED"          // each step is undone, needs no undo, or was skipped
	DeadLetter        = coordinator.DeadLetter // an undo was given up, or too many owners crashed: an operator must act
	Resolved          = coordinator.Resolved   // a dead letter that an operator has closed
)

// States has all states of a saga.
var States = []State{Running, Completing, Undoing, Succeeded, Compensated, DeadLetter, Resolved}

// fate is the state of a step that was sent.
type fate int

const (
	inFlight fate = iota // it may be called
	done
	refused // not done, permanently
	unknown // given up; it may be done
	undone
	dead
	skipped // by an operator
)

var fates = [...]string{inFlight: "sent", done: "done", refused: "refused", unknown: "unknown", undone: "undone", dead: "dead", skipped: "skipped"}

func (f fate) String() string { return fates[f] }

// progress is a step that was sent.
type progress struct {
	key     string // unique in the saga
	of, at  string // Branch and Step of its calls
	stage   int
	undo    string // empty if the step needs no undo
	pivot   bool
	wait    bool            // it is a wait, not a call
	signal  bool            // it waits for the signal of its key
	until   time.Time       // end of the wait; zero means never
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
	attempts        int            // failed calls since the last long wait
	by              map[string]int // failed calls by class
	calls           int            // calls that were made
	lost            int            // calls that were not answered before their owner was gone
	next            time.Time      // time of the next call
	parked          bool           // no call was made since next was recorded
}

// formerInput is an input of a step before an edit.
type formerInput struct {
	input  json.RawMessage // nil if it is the saga's
	edited bool
}

// undoable reports whether the step is still to be undone.
func (p *progress) undoable() bool { return p.undo != "" && (p.fate == done || p.fate == unknown) }

// A Snapshot is the state of a saga after one of its records.
type Snapshot struct {
	Position int64           // of the record, from 1
	Written  time.Time       // by the store's clock
	Epoch    interlock.Token // of the owner that wrote it; 0 for a begin record and for operators
	Kind     string          // of the record: begin, declared, sent, done, decide, …
	Step     string          // of the record; commit or abort for decide
	By       By              // the operator, for an operator's record
	State    State           // of the saga
	Reason   string          // of the undo or halt; empty without either
	Steps    []Progress      // sent ones, in the order of their records
}

// Progress is the state of a step that may have been called.
type Progress struct {
	Step     string          // its key
	Stage    int             // from 1
	Status   string          // declared, sent, waiting, done, refused, unknown, undone, dead or skipped
	Undo     string          // the name of its undo; empty if it has none
	Pivot    bool            //
	Until    time.Time       // end of a wait
	Next     time.Time       // time of the next call after a long pause; zero if unknown
	Attempts int             // calls that failed, or were not answered before their owner was gone
	Input    json.RawMessage // its own; nil if it is the saga's
	Output   json.RawMessage // nil if it was not done
	Err      string          // of the last call; or who skipped it and why; or the call that crossed an edit of its input
}

// declared is the status of a step whose record was written with that of an earlier step. It is
// called once all steps before it are done.
const declared = "declared"

// Replay returns the state of a saga after each of its records, which [journal.Journal.Open]
// reads. If a record is invalid in the state before it, the error is a Bug that names it, and the
// snapshots end there.
func Replay(entries []journal.Entry) ([]Snapshot, error) {
	var m machine
	var all []Snapshot
	for i, e := range entries {
		next, err := m.with(e)
		if err != nil {
			return all, bug("replay saga", "", fmt.Errorf("record %d: %w", i+1, err))
		}
		m = next
		moment := Snapshot{Position: e.Position, Written: e.Written, Epoch: e.Epoch, Kind: e.Kind, Step: e.Step, State: m.state, Reason: m.cause(), Steps: m.progress()}
		if n, err := noted(e); err == nil {
			moment.By = n.By
		}
		if i := slices.IndexFunc(moment.Steps, func(p Progress) bool { return p.Step == e.Step }); e.Kind == recordSent && moment.Steps[i].Status == declared {
			moment.Kind = declared
		}
		all = append(all, moment)
	}
	return all, nil
}

func (m *machine) progress() (all []Progress) {
	calling := m.calling()
	for i := range m.steps {
		p, status := &m.steps[i], m.steps[i].fate.String()
		switch {
		case p.fate != inFlight:
		case p.wait:
			status = "waiting"
		case !slices.Contains(calling, p):
			status = declared
		}
		text := p.err
		if p.crossed != "" {
			text = p.crossed
		}
		all = append(all, Progress{Step: p.key, Stage: p.stage, Status: status, Undo: p.undo, Pivot: p.pivot, Until: p.until,
			Next: p.next, Attempts: p.attempts + p.lost, Input: p.input, Output: p.output, Err: text})
	}
	return all
}
