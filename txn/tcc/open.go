package tcc

import (
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// A transaction of [Engine.Submit] is in the journal from its beginning: an open record, and a tried
// record with the request of each branch. The append of its decision has a held record for each
// branch.

// opening is the data of an open record.
type opening struct {
	Until int64  `json:"until"` // milliseconds since 1970; afterwards the owner of the shard cancels
	Run   string `json:"run"`   // random, so that two runs never write the same record
}

// holding is the data of a held record.
type holding struct {
	Hold    json.RawMessage `json:"hold,omitempty"`    // as in trying
	Refused bool            `json:"refused,omitempty"` // as in trying
}

// opened returns the records of the first append.
func opened(run string, until time.Time, tries []try) []journal.Entry {
	entries := []journal.Entry{record(recordOpen, "", opening{Until: until.UnixMilli(), Run: run})}
	for _, t := range tries {
		entries = append(entries, record(recordTried, t.branch, trying{Resource: t.resource, Request: t.request}))
	}
	return entries
}

// concluded returns the records of the append of a decision.
func concluded(d Decision, reason string, tries []try) []journal.Entry {
	var entries []journal.Entry
	for _, t := range tries {
		entries = append(entries, record(recordHeld, t.branch, holding{Hold: t.hold, Refused: t.refused}))
	}
	return append(entries, record(recordDecide, string(d), deciding{Reason: reason}))
}

func (m *machine) open(e journal.Entry) error {
	var o opening
	if err := json.Unmarshal(e.Data, &o); err != nil {
		return err
	}
	if m.opened || len(m.members) > 0 {
		return errOrder
	}
	m.opened, m.until = true, time.UnixMilli(o.Until)
	return nil
}

// held applies the outcome of the try of a branch.
func (m *machine) held(e journal.Entry) error {
	var h holding
	if err := json.Unmarshal(e.Data, &h); err != nil {
		return err
	}
	b := m.find(e.Step)
	if !m.opened || b == nil || b.hold != nil || b.fate != pending {
		return errOrder
	}
	b.hold = h.Hold
	if h.Refused {
		b.fate = refused
	}
	return nil
}
