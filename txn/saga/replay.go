package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Snapshot is a saga right after one of its records.
type Snapshot struct {
	Position int64           // of the record, from 1
	Written  time.Time       // by the store's clock
	Epoch    interlock.Token // of the owner who wrote it; 0 for who began the saga, and operators
	Kind     string          // what happened: begin, declared, sent, done, decide, …
	Step     string          // of which step; commit or abort for decide
	By       By              // the operator, of the records that are made by one
	State    State           // of the saga
	Reason   string          // why it is undone, or halted; empty while it is neither
	Steps    []Progress      // that were sent, in that order
}

// Progress is the state of a step that may have been called.
type Progress struct {
	Step     string          // its key
	Stage    int             // from 1
	Status   string          // declared, sent, waiting, done, refused, unknown, undone, dead or skipped
	Undo     string          // what takes it back; empty if nothing does
	Pivot    bool            //
	Until    time.Time       // of a wait: when it ends
	Next     time.Time       // when it is tried again, if it was left alone for long; zero if that is not known
	Attempts int             // that failed before, or whose owner was gone before they were answered
	Input    json.RawMessage // of its own; nil if it is called with the saga's
	Output   json.RawMessage // nil if it was not done
	Err      string          // of the last call, or who has skipped it and why, or which call crossed an edit of its input
}

// declared is a step whose record stands with that of an earlier one, so that it needs no
// write of its own: it is called once all before it are done.
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
