package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// floor is the base with which a term that is granted at revision rev or later has
// a counter of at least the time wall. wall must have been read before rev was:
// then, since no server makes a million revisions a second, base + revision never
// overtakes the clock, and a base that was lost is set anew, from a later clock,
// above every token that was issued with it.
func floor(wall time.Time, rev int64) int64 { return max(0, interlock.CounterAt(wall)-rev) }

// seeBase keeps the highest base of the namespace, unless it is out of the
// question. The mutex is held.
func (d *Driver) seeBase(o object) {
	if base, err := o.base(); err == nil && d.plausible(base, o.rev) == nil {
		d.base = max(d.base, base)
	}
}

// plausible refuses a base that makes tokens which guards would refuse, or which
// overflow.
func (d *Driver) plausible(base, rev int64) error {
	ceiling := interlock.CounterAt(d.options.Now().Add(interlock.MaxAhead))
	if base > ceiling-rev {
		return fmt.Errorf("the annotation %s is %d: tokens would lie more than %v in the future; if this machine's clock is right, "+
			"remove the annotation from every Lease that has it so", baseKey, base, interlock.MaxAhead)
	}
	return nil
}

// baseFor is the base with which to take o: its own, or one of the namespace or
// the clock if that is higher. A Lease without one, because it is new or because
// somebody removed it, may have had any: then the clock and the revision of this
// moment are read.
func (d *Driver) baseFor(ctx context.Context, name string, o object) (int64, error) {
	base, err := o.base()
	if err != nil {
		return 0, problem("acquire", name, interlock.Definite, err)
	}
	if err := d.plausible(base, o.rev); err != nil {
		return 0, problem("acquire", name, interlock.Definite, err)
	}
	if base == 0 {
		if err := d.raise(ctx, name); err != nil {
			return 0, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(base, d.base), nil
}

// raise has the base of the namespace not below what the clock says now.
func (d *Driver) raise(ctx context.Context, name string) error {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	wall := d.options.Now()
	rev, err := d.client.revision(rctx)
	if err != nil {
		return unread(rctx, "acquire", name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base = max(d.base, floor(wall, rev))
	return nil
}
