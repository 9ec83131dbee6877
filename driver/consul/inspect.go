package consul

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock/driver"
)

// Lock implements driver.Inspector with one consistent read. Consul reports neither
// waiters nor when a session expires.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	const op = "show"
	if err := checkName(op, name); err != nil {
		return driver.LockState{}, err
	}
	if err := d.usable(ctx, op, name); err != nil {
		return driver.LockState{}, err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	e, _, err := d.client.get(rctx, d.layout.lock(name))
	if err != nil {
		return driver.LockState{}, unread(rctx, op, name, err)
	}
	return describe(name, e), nil
}

// Locks implements driver.Inspector. It reads every key of the prefix.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	const op = "list"
	if err := d.usable(ctx, op, ""); err != nil {
		return nil, false, err
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	all, _, err := d.client.read(rctx, d.layout.prefix, query{recurse: true})
	if err != nil {
		return nil, false, unread(rctx, op, "", err)
	}
	var locks []driver.LockState
	for _, e := range all {
		name, ok := d.layout.name(e.Key)
		if state := describe(name, e); ok && state.Holder != nil && strings.HasPrefix(name, prefix) {
			locks = append(locks, state)
		}
	}
	slices.SortFunc(locks, func(a, b driver.LockState) int { return cmp.Compare(a.Name, b.Name) })
	shown := min(len(locks), max(limit, 0))
	return locks[:shown], len(locks) > shown, nil
}

// describe returns the state of a key. A holder of another client is named by its
// session.
func describe(name string, e entry) driver.LockState {
	state := driver.LockState{Name: name}
	if e.Session == "" {
		return state
	}
	r, ours := readRecord(e)
	state.Holder = &driver.Contender{Owner: holderOf(e), Foreign: !ours}
	if ours {
		state.Holder.Since = r.Since
		state.Holder.Token, _ = r.token(e.ModifyIndex) // out of range: none
	}
	return state
}
