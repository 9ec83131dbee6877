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
