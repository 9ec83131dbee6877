package tcc

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A branch that crashes the process which calls it crashes the next owner's too: take-overs
// are counted in the journal before anything is called, and any answer ends the count.

// suffer takes how it goes with what is called.
func (m *machine) suffer(e journal.Entry) error {
	var w why
	if e.Kind != recordTaken {
		if err := json.Unmarshal(e.Data, &w); err != nil {
			return err
		}
	}
	b := m.find(e.Step)
	switch {
	case m.by != nil || !m.has(pending), e.Kind == recordFailing && (b == nil || b.fate != pending):
		return errOrder
	case e.Kind == recordTaken:
		m.takeOvers++
	case e.Kind == recordHalted:
		m.halted = w.Error
	default:
		b.err, b.attempts = w.Error, w.Attempts
	}
	return nil
}

// inherit counts a take-over, and halts the transaction after too many. What was decided
// stays decided.
func (d *drive) inherit() error {
	n := d.m.takeOvers + 1
	if !d.Exhausted(n) {
		return d.append([]journal.Entry{{Kind: recordTaken}})
	}
	reason := fmt.Sprintf("it was taken over %d times in a row while branches were called, and no call was answered: its process seems to crash each time", n)
	return d.append([]journal.Entry{record(recordHalted, "", why{Error: reason})})
}

// failing is the record of a call that failed, if one is due: of the fourth failure, the
// eighth, the sixteenth and so on, one an hour, and one that ends the count of take-overs.
func (d *drive) failing(b member, err error) []journal.Entry {
	c, now := d.of(b), d.Now()
	double := c.attempts >= 4 && c.attempts&(c.attempts-1) == 0
	if d.m.takeOvers == 0 && !double && (c.noted.IsZero() || now.Sub(c.noted) < time.Hour) {
		return nil
	}
	c.noted = now
	return []journal.Entry{record(recordFailing, b.name, why{Error: coordinator.Truncate(err.Error(), coordinator.MaxFailing), Attempts: c.attempts})}
}
