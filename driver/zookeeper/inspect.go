package zookeeper

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var _ driver.Inspector = (*Driver)(nil)

const opShow = "show"

// Lock implements driver.Inspector: it lists the queue and reads each node. The first contender is a waiter
// while it is unconfirmed; [Driver.Watch] signals when it has taken its turn. A contender's Since
// is when its node was created, by the servers' clock; a holder that had to wait was granted
// later. Expires is the length of its session, 0 for other clients.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	if err := d.layout.check(opShow, name); err != nil {
		return driver.LockState{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.LockState{}, harmless(err)
	}
	if err := s.sync(ctx, opShow, name); err != nil {
		return driver.LockState{}, harmless(err)
	}
	state, err := s.describe(ctx, name)
	return state, harmless(err)
}

// Locks implements driver.Inspector. It reads the names under the root and then
// one lock after the other, until it has enough.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	s, err := d.current(ctx)
	if err != nil {
		return nil, false, harmless(err)
	}
	if err := s.sync(ctx, opShow, ""); err != nil {
		return nil, false, harmless(err)
	}
	names, err := s.names(ctx, d.layout.root, prefix)
	if err != nil {
		return nil, false, harmless(err)
	}
	slices.Sort(names)
	var locks []driver.LockState
	for _, name := range names {
		state, err := s.describe(ctx, name)
		switch {
		case err != nil:
			return nil, false, harmless(err)
		case state.Holder == nil && len(state.Waiters) == 0:
		case len(locks) >= limit:
			return locks, true, nil
		default:
			locks = append(locks, state)
		}
	}
	return locks, false, nil
}

// names lists the locks below a node, held or not, in no order.
func (s *session) names(ctx context.Context, path, prefix string) ([]string, error) {
	list, err := s.children(ctx, opShow, "", path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, child := range list {
		name, ok := s.d.layout.lockAt(path, child)
		if !ok {
			continue
		}
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
		if !s.d.layout.raw {
			continue
		}
		deeper, err := s.names(ctx, path+"/"+child, prefix)
		if err != nil {
			return nil, err
		}
		names = append(names, deeper...)
	}
	return names, nil
}

// lockAt returns the name of the lock of a child, if it is one.
func (l layout) lockAt(path, child string) (name string, ok bool) {
	if _, contends := readNode(child); contends && path != l.root {
		return "", false
	}
	return l.name(path + "/" + child)
}

// describe reads one queue.
func (s *session) describe(ctx context.Context, name string) (driver.LockState, error) {
	lock, state := s.d.layout.lock(name), driver.LockState{Name: name}
	list, err := s.children(ctx, opShow, name, lock)
	if err != nil {
		return state, err
	}
	for _, n := range queueOf(list) {
		first := state.Holder == nil && len(state.Waiters) == 0
		f, err := s.get(ctx, opShow, name, lock+"/"+n.name)
		if first && isUnconfirmed(n, f) {
			f, err = s.watch(ctx, opShow, name, lock+"/"+n.name) // it becomes the holder by a write
		}
		if err != nil {
			return state, err
		}
		if f == nil {
			continue // it was deleted meanwhile
		}
		c := contenderOf(n, f)
		if first && !isUnconfirmed(n, f) {
			state.Holder = &c
			continue
		}
		c.Token = 0
		state.Waiters = append(state.Waiters, c)
	}
	return state, nil
}

func contenderOf(n node, f *found) driver.Contender {
	c := driver.Contender{Owner: ownerOf(n, f.data), Since: time.UnixMilli(f.stat.Ctime)}
	r, ok := readRecord(f.data)
	if c.Foreign = !ok || n.family != curator; c.Foreign {
		return c
	}
	c.Expires = time.Duration(r.TTL) * time.Millisecond
	c.Token = tokenOf(r, f)
	return c
}

// tokenOf returns the token of one of our nodes; 0 if the counter is out of range.
func tokenOf(r record, f *found) interlock.Token {
	token, err := r.token(f.stat.Czxid)
	if err != nil {
		return 0
	}
	return token
}
