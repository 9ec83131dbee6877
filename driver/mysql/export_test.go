package mysql

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// ReadOnlyNow is the condition that a server is read-only.
const ReadOnlyNow = readOnlyNow

// SweepSize bounds the rows that a sweep of leases removes. A session sweeps after SweepGrants.
const (
	SweepSize   = sweepSize
	SweepGrants = sweepGrants
)

// Sweep removes rows that were not used for after, and returns how many it has found.
func (t *Table) Sweep(ctx context.Context, after time.Duration) (found int, err error) {
	return t.rows.sweep(ctx, after)
}

// Take takes names by one statement, and returns the counter of the last.
func (t *Table) Take(ctx context.Context, names ...string) (counter int64, err error) {
	var asks []*leasetable.Ask
	for _, name := range names {
		asks = append(asks, &leasetable.Ask{Request: driver.Request{Name: name, Owner: "o"}})
	}
	err = t.rows.Take(ctx, asks)
	return asks[len(asks)-1].Row.Counter, err
}

// Change takes and releases names by one statement.
func (t *Table) Change(ctx context.Context, asks ...*leasetable.Ask) error {
	return t.rows.Take(ctx, asks)
}

// Sweep removes the rows of free locks.
func (d *Driver) Sweep(ctx context.Context, _ time.Duration) (found int, err error) {
	return 0, d.ask(ctx, "sweep", "", d.sweep)
}

// NextSweep makes the next sweep due soon, without a task.
func (d *Driver) NextSweep(ctx context.Context) error {
	return d.ask(ctx, "sweep", "", func(context.Context) error {
		d.sweeps.Next = boottime.Now().Add(50 * time.Millisecond)
		return nil
	})
}

// Detached reports whether the storage engine has detached a branch from its session.
func (p *Participant) Detached(ctx context.Context, x driver.XID) (detached, known bool) {
	return p.detached(ctx, x)
}

// InPauses calls do instead of the participant's pauses.
func (p *Participant) InPauses(do func()) {
	p.pause = func(context.Context, time.Duration) bool { do(); return true }
}

// Queued returns the number of waiting tasks.
func (d *Driver) Queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue)
}
