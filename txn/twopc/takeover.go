package twopc

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A call that crashes its process will crash the next owner's process too. So take-overs are
// counted in the journal before any call, and any answer ends the count. After too many the
// transaction is halted: it stays decided and its branches prepared until an operator resumes it.

// recordFailure applies a failure of the second phase, a take-over, a halt or a retry.
func (m *machine) recordFailure(e journal.Entry) error {
	var w reasonData
	if e.Kind != recordTaken {
		if err := json.Unmarshal(e.Data, &w); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(m.branches, func(p progress) bool { return p.name == e.Step && p.fate == open })
	switch {
	case len(m.left()) == 0, e.Kind == recordFailing && i < 0, (e.Kind == recordRetry) != (m.halted != ""):
		return errOrder
	case e.Kind == recordTaken:
		m.takeOvers++
	case e.Kind == recordHalted:
		m.halted = w.Text
	case e.Kind == recordRetry:
		m.halted = ""
	default:
		m.branches[i].err, m.branches[i].attempts = w.Text, w.Attempts
	}
	return nil
}

// countTakeOver counts a take-over, and halts the transaction after too many.
func (d secondPhase) countTakeOver(t *coordinator.Turn, m machine) (machine, error) {
	n := m.takeOvers + 1
	if !t.Exhausted(n) {
		return d.append(t, m, []journal.Entry{{Kind: recordTaken}})
	}
	text := fmt.Sprintf("it was taken over %d times in a row while participants were called to commit, and none answered: its process seems to crash each time", n)
	return d.append(t, m, []journal.Entry{record(recordHalted, "", reasonData{Text: text})})
}

// failures selects the failed calls to record: the fourth, eighth, sixteenth and so on in a row, one an
// hour, and those that end the count of take-overs.
type failures struct {
	before map[string]int // as recorded when the drive began
	noted  time.Time      // when one was last recorded
}

func (f *failures) of(m machine, a commitResults, attempt int, now time.Time) (entries []journal.Entry) {
	double := attempt >= 4 && attempt&(attempt-1) == 0
	if len(a.failed) == 0 || m.takeOvers == 0 && !double && (f.noted.IsZero() || now.Sub(f.noted) < time.Hour) {
		return nil
	}
	f.noted = now
	for i, name := range a.failed {
		entries = append(entries, record(recordFailing, name, reasonData{Text: coordinator.Truncate(a.errs[i].Error(), coordinator.MaxFailing), Attempts: f.before[name] + attempt}))
	}
	return entries
}

// halt reports a halted transaction.
func (m *Engine) halt(e observe.TwoPCHalted) {
	if f := m.options.Hooks.Halted; f != nil {
		f(e)
	}
}

// haltedError returns the error for a caller that waits for a halted transaction.
func (m *machine) haltedError(op, id string) error {
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Uncertain, Err: fmt.Errorf("%w: %s", ErrHalted, m.halted)}
}
