package kube

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// floor returns the base with which a term granted at revision rev or later has a
// counter of at least the time wall. wall must have been read before rev was. No
// server makes a million revisions a second, so base + revision never overtakes the
// clock. A lost base is set again, from a later clock, above every token issued
// with it.
func floor(wall time.Time, rev int64) int64 { return max(0, interlock.CounterAt(wall)-rev) }

// observeBase keeps the highest base of the namespace, unless it is implausible. The
// caller holds the mutex.
func (d *Driver) observeBase(o object) {
	if base, err := o.base(); err == nil && d.plausible(base, o.rev) == nil {
		d.base = max(d.base, base)
	}
}

// plausible returns a [*driver.ImplausibleError] if guards would reject the tokens
// of a base at revision rev, by the API server's clock.
func (d *Driver) plausible(base, rev int64) error {
	return driver.Plausible(base+min(rev, interlock.MaxCounter), d.client.clock.now(d.options.Now))
}

// baseFor returns the base with which to take o: its own, or that of the namespace
// or the clock if that is higher. A Lease without one, because it is new or it was
// removed, may have had any: then the present clock and revision are read.
func (d *Driver) baseFor(ctx context.Context, name string, o object) (int64, error) {
	if d.advisory {
		return 0, nil
	}
	base, err := o.base()
	if err != nil {
		return 0, problem("acquire", name, interlock.Definite, err)
	}
	if base == 0 {
		if _, err := d.raise(ctx, "acquire", name); err != nil {
			return 0, err
		}
	}
	base = max(base, d.highestBase())
	if err := d.plausible(base, o.rev); err != nil {
		return 0, problem("acquire", name, interlock.Definite, err)
	}
	return base, nil
}

func (d *Driver) highestBase() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.base
}

// raise makes the base of the namespace at least the present clock. rev is a
// present revision.
func (d *Driver) raise(ctx context.Context, op, name string) (rev int64, err error) {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	wall := d.options.Now()
	if rev, err = d.client.revision(rctx); err != nil {
		return 0, unread(rctx, op, name, err)
	}
	if err := d.raiseTo(wall, rev); err != nil {
		return 0, problem(op, name, interlock.Definite, err)
	}
	return rev, nil
}

// raiseTo returns a [*driver.ClockError], and raises nothing, if the clock is ahead
// of the API server's.
func (d *Driver) raiseTo(wall time.Time, rev int64) error {
	if err := driver.SameClock(wall, d.client.clock.now(d.options.Now)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base = max(d.base, floor(wall, rev))
	return nil
}
