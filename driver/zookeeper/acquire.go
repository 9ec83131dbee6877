package zookeeper

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	opAcquire = "acquire"

	// attempts bounds how often one call repeats a refused request: its parent node
	// was removed, or the base was raised meanwhile.
	attempts = 8
)

// Acquire implements driver.Fenced. It blocks until the claim is granted or ctx
// is done. A single request is bounded by a third of the TTL, 1 s to 5 s. Uncontended it is one write
// and, unless this process was the last to hold the lock, one list of the queue at the same time.
//
// Besides the errors of the interface: Retryable with interlock.ErrSessionEnded
// or interlock.ErrLost in its chain means that the place in the queue is lost. The same call
// takes a new one. A [*FamilyError] means that clients queue for the same lock that do not see
// our nodes.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := d.acquire(ctx, r)
	if err != nil {
		d.dropEvents(identity{r.Name, r.Owner})
	}
	return g, err
}

func (d *Driver) acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := d.check(ctx, r); err != nil {
		return driver.Grant{}, err
	}
	s, err := d.current(ctx)
	if err != nil {
		return driver.Grant{}, prelude(err)
	}
	if r.NoWait && !d.knows(identity{r.Name, r.Owner}) {
		if err := d.peek(ctx, s, r.Name); err != nil {
			return driver.Grant{}, err
		}
	}
	c, err := d.register(s, r)
	if err != nil {
		return driver.Grant{}, err
	}
	q, err := d.enter(ctx, s, c)
	if err != nil {
		return driver.Grant{}, err
	}
	return d.await(ctx, s, c, q, r.NoWait)
}

func (d *Driver) check(ctx context.Context, r driver.Request) error {
	if err := d.layout.check(opAcquire, r.Name); err != nil {
		return err
	}
	if r.Owner == "" || len(r.Owner) > driver.MaxName {
		return fail.New(opAcquire, r.Name, interlock.Bug, fmt.Errorf("the owner has %d bytes, 1 to %d are allowed", len(r.Owner), driver.MaxName))
	}
	if ctx.Err() != nil {
		return notSent(ctx, opAcquire, r.Name)
	}
	return nil
}

func (d *Driver) knows(id identity) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.contenders[id] != nil
}

// peek refuses a request that must not wait before it creates a node. Its server may be behind the
// leader, so that a holder counts only if it is still there after a sync.
func (d *Driver) peek(ctx context.Context, s *session, name string) error {
	lock := d.layout.lock(name)
	list, err := s.children(ctx, opAcquire, name, lock)
	if err == nil && len(queueOf(list)) > 0 {
		if err = s.sync(ctx, opAcquire, name); err == nil {
			list, err = s.children(ctx, opAcquire, name, lock)
		}
	}
	if err != nil {
		return prelude(err)
	}
	q := queueOf(list)
	if err := d.refuse(name, q); err != nil {
		return err
	}
	if len(q) > 0 {
		return d.held(ctx, s, name, lock, q[0])
	}
	return nil
}

func (d *Driver) held(ctx context.Context, s *session, name, lock string, holder node) error {
	held := &interlock.HeldError{Name: name}
	if f, err := s.get(ctx, opAcquire, name, lock+"/"+holder.name); err == nil && f != nil {
		held.Owner = ownerOf(holder, f.data)
	}
	return held
}

// register returns the owner's contender, a new one if there is none under s.
func (d *Driver) register(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fail.Closed(opAcquire, r.Name)
	}
	if s.ended {
		return nil, again(r.Name, interlock.ErrSessionEnded)
	}
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	if old != nil && old.session == s && old.state < dropped {
		old.events = r.Events
		old.place = driver.Place{Ahead: -1} // and report it again
		return old, nil
	}
	c := &contender{
		identity: id,
		id:       newID(),
		lock:     d.layout.lock(r.Name),
		session:  s,
		events:   r.Events,
		place:    driver.Place{Ahead: -1},
		changed:  make(chan struct{}, 1),
	}
	if old != nil && !old.gone() {
		c.stale = old.ids()
	}
	d.contenders[id] = c
	return c, nil
}

// dropEvents ends the events of an owner whose Acquire returns an error, even if
// its place is granted later.
func (d *Driver) dropEvents(id identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.contenders[id]; c != nil {
		c.events = driver.Events{}
	}
}
