package kube

import (
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// sweepAfter is how long a Lease must be without a holder and unchanged before this
// process removes it: every sweepEvery at most sweepSize.
const (
	sweepAfter = 10 * time.Minute
	sweepEvery = time.Minute
	sweepSize  = 1000
)

// keepSweeping sweeps until the driver closes. A failure is left to the next time
// and to other processes: without the right to delete Leases nothing is removed.
func (d *Driver) keepSweeping() {
	timer := time.NewTicker(sweepEvery)
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-timer.C:
			_, _ = d.sweep(d.ctx, sweepAfter, sweepSize)
		}
	}
}

// sweep removes at most most Leases that have been free for a time, each on the
// condition that it is unchanged. Before that it stores the base of the namespace
// in its own Lease. So the tokens of a returning name continue above the former
// ones, whatever the clocks say.
func (d *Driver) sweep(ctx context.Context, after time.Duration, most int) (removed int, err error) {
	idle := d.idle(after, most)
	if len(idle) == 0 {
		return 0, nil
	}
	base := int64(0)
	for _, o := range idle {
		own, _ := o.base() // idle leaves out unreadable ones
		base = max(base, own)
	}
	if err := d.keepBase(ctx, base); err != nil {
		return 0, err
	}
	for _, o := range idle {
		if d.look(o.lease.Name).rev != o.rev {
			continue // it was taken or removed meanwhile
		}
		err := d.remove(ctx, o)
		switch {
		case err == nil:
			removed++
		case !moved(err) && !apierrors.IsNotFound(err):
			return removed, err
		}
	}
	return removed, nil
}

func (d *Driver) remove(ctx context.Context, o object) error {
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	return d.client.remove(rctx, o)
}

// idle returns Leases to be removed, the oldest first.
func (d *Driver) idle(after time.Duration, most int) []object {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := boottime.Now()
	var found []*sight
	for object, s := range d.view.sights {
		base, err := s.base()
		waits := len(d.view.waiting[object]) > 0
		if s.disposable() && !waits && now.Sub(s.since) >= after && err == nil && d.plausible(base, s.rev) == nil {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *sight) int { return int(a.since.Sub(b.since)) })
	var idle []object
	for _, s := range found[:min(len(found), most)] {
		idle = append(idle, s.object)
	}
	return idle
}

// disposable reports whether a Lease has no holder and only data of this package
// that is not needed later. Records of forced releases, and data of others, keep
// it.
func (o object) disposable() bool {
	if !o.exists() || o.holder() != "" || strings.HasSuffix(o.lease.Name, driver.BaseName) {
		return false
	}
	meta, ours := o.lease.ObjectMeta, false
	for key := range meta.Annotations {
		switch key {
		case baseKey, touchKey, nameKey:
			ours = true
		default:
			return false
		}
	}
	return ours && o.lease.Spec.Strategy == nil &&
		len(meta.Labels) == 0 && len(meta.OwnerReferences) == 0 && len(meta.Finalizers) == 0
}
