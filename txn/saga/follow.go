package saga

import (
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/txn/journal"
)

// What follows from what happened: pure functions from a machine to the records of
// one append.

// succeeded: the step in flight is done.
func (m machine) succeeded(p plan, output json.RawMessage, now time.Time) ([]journal.Entry, error) {
	entries := []journal.Entry{{Kind: recordDone, Step: m.current().name, Data: output}}
	m, err := m.with(entries...)
	if err != nil {
		return nil, err
	}
	sent := len(m.steps)
	if m.state == Running && (m.passedPivot() || sent == len(p.steps)) {
		entries = append(entries, record(recordDecide, decideCommit, why{}))
		m.state = Completing
	}
	switch {
	case sent == len(p.steps):
		return append(entries, journal.Entry{Kind: recordEnd}), nil
	case m.late(now):
		aborted, err := m.abort(errLate.Error())
		return append(entries, aborted...), err
	}
	return append(entries, p.sent(sent)), nil
}

// givenUp: the step in flight is not tried again.
func (m machine) givenUp(mayBeDone bool, cause error) ([]journal.Entry, error) {
	name := m.current().name
	entries := []journal.Entry{record(recordFailed, name, why{Unknown: mayBeDone, Error: said(cause)})}
	m, err := m.with(entries...)
	if err != nil {
		return nil, err
	}
	aborted, err := m.abort(name + ": " + said(cause))
	return append(entries, aborted...), err
}

func (m machine) abort(reason string) ([]journal.Entry, error) {
	return m.closing(record(recordDecide, decideAbort, why{Error: reason}))
}

// tookBack: the next undo is done.
func (m machine) tookBack() ([]journal.Entry, error) {
	return m.closing(journal.Entry{Kind: recordUndone, Step: m.undoing().name})
}

// buried: the next undo is not tried again.
func (m machine) buried(cause error) ([]journal.Entry, error) {
	return m.closing(record(recordDead, m.undoing().name, why{Error: said(cause)}))
}

// closing is e, and the end if nothing is left to undo after it. A dead letter has
// no end: it stays among what is unfinished.
func (m machine) closing(e journal.Entry) ([]journal.Entry, error) {
	m, err := m.with(e)
	if err != nil {
		return nil, err
	}
	if m.state == Undoing && m.undoing() == nil {
		return []journal.Entry{e, {Kind: recordEnd}}, nil
	}
	return []journal.Entry{e}, nil
}
