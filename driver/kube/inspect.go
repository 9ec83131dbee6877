package kube

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Lock implements driver.Inspector: one read of the Lease. A holder's Since is by its own clock,
// and Expires by the observations of this process. A process that has just opened shows a dead
// holder with its full lease. An expired holder is not shown. Kubernetes does not know waiters.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	at, err := d.layout.locate("show", name)
	if err != nil {
		return driver.LockState{}, err
	}
	if err := d.open("show", name); err != nil {
		return driver.LockState{}, err
	}
	if _, _, err := d.read(ctx, "show", name, at); err != nil {
		return driver.LockState{}, err
	}
	return d.describe(name, d.look(at)), nil
}

// Locks implements driver.Inspector. It reads all Leases of the namespace, five
// hundred at a time. It lists every held Lease, also those for other purposes, such
// as a node's.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if err := d.open("list", ""); err != nil {
		return nil, false, err
	}
	all, err := d.list(ctx)
	if err != nil {
		return nil, false, err
	}
	var locks []driver.LockState
	for _, o := range all.objects {
		name, ours := d.layout.name(o.lease.Name)
		if !ours || !strings.HasPrefix(name, prefix) {
			continue
		}
		d.learn(o.lease.Name, o)
		if state := d.describe(name, d.look(o.lease.Name)); state.Holder != nil {
			locks = append(locks, state)
		}
	}
	slices.SortFunc(locks, func(a, b driver.LockState) int { return cmp.Compare(a.Name, b.Name) })
	shown := min(len(locks), max(limit, 0))
	return locks[:shown], len(locks) > shown, nil
}

func (d *Driver) open(op, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed(op, name)
	}
	return nil
}

func (d *Driver) describe(name string, s sight) driver.LockState {
	state := driver.LockState{Name: name}
	now := boottime.Now()
	v := s.judge("", now, d.options.TTL)
	if v.state != held {
		return state
	}
	state.Holder = &driver.Contender{Owner: v.holder, Token: s.token(), Expires: v.until.Sub(now), Foreign: !s.ours()}
	if at := s.lease.Spec.AcquireTime; at != nil {
		state.Holder.Since = at.Time
	}
	return state
}
