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

// A participant that crashes the process which tells it to commit crashes the next owner's
// too: take-overs are counted in the journal before any call, and any answer ends
// the count. After too many the transaction is halted: it stays decided, its branches stay
// prepared, and a person has it go on.

// suffer takes how it goes with the commit.
func (m *machine) suffer(e journal.Entry) error {
	var w why
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

// inherit counts a take-over, and halts the transaction after too many.
func (d driving) inherit(t *coordinator.Turn, m machine) (machine, error) {
	n := m.takeOvers + 1
	if !t.Exhausted(n) {
		return d.append(t, m, []journal.Entry{{Kind: recordTaken}})
	}
	text := fmt.Sprintf("it was taken over %d times in a row while participants were called to commit, and none answered: its process seems to crash each time", n)
	return d.append(t, m, []journal.Entry{record(recordHalted, "", why{Text: text})})
}

// failures says which calls that failed become known in the journal: of a number that
// grows the fourth, the eighth, the sixteenth and so on, one an hour, and those that end
// the count of take-overs.
type failures struct {
	before map[string]int // that the journal knew of when the drive began
	noted  time.Time
}

func (f *failures) of(m machine, a answered, attempt int, now time.Time) (entries []journal.Entry) {
	double := attempt >= 4 && attempt&(attempt-1) == 0
	if len(a.again) == 0 || m.takeOvers == 0 && !double && (f.noted.IsZero() || now.Sub(f.noted) < time.Hour) {
		return nil
	}
	f.noted = now
	for i, name := range a.again {
		entries = append(entries, record(recordFailing, name, why{Text: coordinator.Truncate(a.errs[i].Error(), coordinator.MaxFailing), Attempts: f.before[name] + attempt}))
	}
	return entries
}

// halt reports a transaction that waits for a person.
func (m *Engine) halt(e observe.TwoPCHalted) {
	if f := m.options.Hooks.Halted; f != nil {
		f(e)
	}
}

// waits is the error of a caller that waits for a halted transaction.
func (m *machine) waits(op, id string) error {
	return &interlock.Error{Op: op, Name: id, Kind: interlock.Uncertain, Err: fmt.Errorf("%w: %s", ErrHalted, m.halted)}
}
