package tcc

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A call that crashes its process will crash the next owner's process too. So take-overs are
// counted in the journal before any call, and any answer ends the count.

// recordFailure applies a failed call, a take-over or a halt.
func (m *machine) recordFailure(e journal.Entry) error {
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

// countTakeOver counts a take-over, and halts the transaction after too many. The decision stands.
func (d *drive) countTakeOver() error {
	n := d.m.takeOvers + 1
	if !d.Exhausted(n) {
		return d.append([]journal.Entry{{Kind: recordTaken}})
	}
	reason := fmt.Sprintf("it was taken over %d times in a row while branches were called, and no call was answered: its process seems to crash each time", n)
	return d.append([]journal.Entry{record(recordHalted, "", why{Error: reason})})
}

// failing returns the record of a failed call, if one is due: of the fourth, eighth, sixteenth failure
// and so on in a row, one an hour, and one that ends the count of take-overs.
func (d *drive) failing(b member, err error) []journal.Entry {
	c, now := d.callsOf(b), d.Now()
	double := c.attempts >= 4 && c.attempts&(c.attempts-1) == 0
	if d.m.takeOvers == 0 && !double && (c.noted.IsZero() || now.Sub(c.noted) < time.Hour) {
		return nil
	}
	c.noted = now
	return []journal.Entry{record(recordFailing, b.name, why{Error: coordinator.Truncate(err.Error(), coordinator.MaxFailing), Attempts: c.attempts})}
}
