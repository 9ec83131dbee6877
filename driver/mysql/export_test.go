package mysql

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// SweepSize is how many rows a sweep removes at most.
const SweepSize = sweepSize

// Sweep removes rows that were not used for so long, and says how many it has found.
func (t *Table) Sweep(ctx context.Context, after time.Duration) (found int, err error) {
	return t.rows.sweep(ctx, after)
}

// Sweep removes rows that were not used for so long, and says how many it has found.
func (d *Driver) Sweep(ctx context.Context, after time.Duration) (found int, err error) {
	err = d.ask(ctx, "sweep", "", func(ctx context.Context) (err error) {
		found, err = d.sweep(ctx, after)
		return err
	})
	return found, err
}

// NextSweep has the next sweep come at once.
func (d *Driver) NextSweep(ctx context.Context) error {
	return d.ask(ctx, "sweep", "", func(context.Context) error { d.sweeps.Next = 0; return nil })
}

// Detached tells whether the storage engine has let go of a branch's session.
func (p *Participant) Detached(ctx context.Context, x driver.XID) (detached, known bool) {
	return p.detached(ctx, x)
}

// InPauses has something else happen where the participant waits.
func (p *Participant) InPauses(do func()) {
	p.pause = func(context.Context, time.Duration) { do() }
}

// Queued is how many tasks wait to be done.
func (d *Driver) Queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue)
}
