package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
)

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
