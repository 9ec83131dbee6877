package kube

import (
	"context"
	"strconv"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// seed checks the bases of the listed namespace, and starts tokens where Options
// require.
func (d *Driver) seed(ctx context.Context) error {
	if err := d.checkBase(ctx); err != nil || d.options.Seed.After == 0 {
		return err
	}
	least, err := d.options.Seed.Floor(d.client.clock.now(d.options.Now))
	if err != nil {
		return problem("open", "", interlock.Definite, err)
	}
	rev, err := d.raise(ctx, "open", "")
	if err != nil {
		return err
	}
	return d.keepBase(ctx, max(0, least-rev))
}

// checkBase rejects an implausible base, or repairs it if Options ask for that.
func (d *Driver) checkBase(ctx context.Context) error {
	odd, top, err := d.implausible()
	switch {
	case err == nil:
		return nil
	case d.options.Seed.Repair == nil:
		return problem("open", "", interlock.Definite, err)
	}
	rev, err := d.raise(ctx, "open", "")
	if err != nil {
		return err
	}
	base := d.highestBase()
	if err := d.record(ctx, d.options.Seed.Repair, top, base+rev); err != nil {
		return err
	}
	for _, name := range odd {
		if err := d.updateLease(ctx, name, func(o object, l *coordination.Lease) (bool, error) { return d.lower(o, l, base), nil }); err != nil {
			return err
		}
	}
	return nil
}

// implausible returns the objects with an implausible base, the highest of their
// counters, and the error.
func (d *Driver) implausible() (odd []string, top int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for object, s := range d.view.sights {
		base, unreadable := s.base()
		if unreadable != nil || d.plausible(base, s.rev) == nil {
			continue // an unreadable one concerns only its own lock
		}
		odd = append(odd, object)
		if base+s.rev > top {
			top, err = base+s.rev, d.plausible(base, s.rev)
		}
	}
	return odd, top, err
}

// record records a repair as a forced release of driver.BaseName.
func (d *Driver) record(ctx context.Context, r *driver.Repair, before, after int64) error {
	b := driver.BreakRecord{At: d.options.Now().UTC().Truncate(time.Microsecond),
		Break: driver.Break{Name: driver.BaseName, Owner: r.Record(before, after), Reason: r.Reason, By: r.By}}
	return d.updateLease(ctx, d.options.Prefix+driver.BaseName, func(_ object, l *coordination.Lease) (bool, error) { return true, note(l, b) })
}

// lower sets an implausible base to a lower one. It keeps the token of a present
// term.
func (d *Driver) lower(o object, l *coordination.Lease, base int64) bool {
	if now, err := o.base(); err != nil || d.plausible(now, o.rev) == nil {
		return false
	}
	if token := o.token(); token.Valid() {
		l.Annotations[tokenKey] = token.String()
	}
	l.Annotations[baseKey] = strconv.FormatInt(base, 10)
	return true
}

// keepBase writes a base into a Lease of its own, unless that has a higher one. Every process
// that opens later starts with it.
func (d *Driver) keepBase(ctx context.Context, base int64) error {
	return d.updateLease(ctx, d.options.Prefix+driver.BaseName, func(o object, l *coordination.Lease) (bool, error) {
		now, err := o.base()
		l.Annotations[baseKey] = strconv.FormatInt(base, 10)
		return now < base, err
	})
}

// updateLease changes or creates a Lease, on the condition that it is as change saw it.
// change returns false to change nothing.
func (d *Driver) updateLease(ctx context.Context, name string, change func(o object, l *coordination.Lease) (bool, error)) error {
	const op = "write base of tokens"
	for range attempts {
		o, _, err := d.read(ctx, op, "", name)
		if err != nil {
			return err
		}
		draft := o.draft(d.options.Namespace, name)
		if needed, err := change(o, draft); err != nil {
			return problem(op, "", interlock.Definite, err)
		} else if !needed {
			return nil
		}
		rctx, cancel := d.bounded(ctx)
		after, err := d.client.write(rctx, draft)
		if err == nil {
			d.learn(name, after)
		} else if !moved(err) && (!apierrors.IsNotFound(err) || !o.exists()) {
			err = failed(rctx, op, "", err)
			cancel()
			return err
		}
		cancel()
		if err == nil {
			return nil
		}
	}
	return problem(op, "", interlock.Retryable, errOthers)
}
