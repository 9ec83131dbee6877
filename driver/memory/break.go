package memory

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// maxBreaks is how many forced releases a space keeps.
const maxBreaks = 1000

var _ driver.Breaker = (*Driver)(nil)

// Break takes a lock away from its holder and records that, in one step; see
// driver.Breaker. The holder notices at its next renewal. A space keeps the last
// 1,000 records.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	if err := d.breakable(ctx, b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	record, ok := d.space.breakHold(b)
	return record, ok, nil
}

// Breaks returns the records, newest first; see driver.Breaker.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	switch {
	case d.isClosed():
		return nil, interlock.ErrClosed
	case ctx.Err() != nil:
		return nil, fail.Unsent(ctx, "show forced releases", name)
	}
	return d.space.brokenOf(name, limit), nil
}

func (d *Driver) breakable(ctx context.Context, b driver.Break) error {
	const op = "break"
	if d.isClosed() {
		return interlock.ErrClosed
	}
	if err := asking(ctx, op, b.Name); err != nil {
		return err
	}
	if err := b.Validate(); err != nil {
		return fail.New(op, b.Name, interlock.Bug, err)
	}
	return nil
}

func (s *Space) breakHold(b driver.Break) (record driver.BreakRecord, ok bool) {
	s.mu.Lock()
	defer s.unlock()
	counter, effects := s.table.breakHold(boottime.Now(), b.Name, b.Owner)
	s.notify(effects)
	if counter == 0 {
		return record, false
	}
	record = driver.BreakRecord{Break: b, At: time.Now()}
	record.Token, _ = interlock.NewToken(counter, 0) // valid: it was granted with this counter
	s.broken = append(s.broken, record)
	s.broken = s.broken[max(0, len(s.broken)-maxBreaks):]
	return record, true
}

func (s *Space) brokenOf(name string, limit int) (all []driver.BreakRecord) {
	s.mu.Lock()
	defer s.unlock()
	for _, b := range slices.Backward(s.broken) {
		if len(all) >= limit {
			break
		}
		if name == "" || b.Name == name {
			all = append(all, b)
		}
	}
	return all
}
