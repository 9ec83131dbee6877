package coordinator

import "time"

// Coordinators of different processes wake each other by Options.Bell. A name that they ring
// is one of these and the id of a transaction. A process that misses a ring polls.
const (
	ringChanged = "!" // it was begun, or somebody has appended: the owner looks at it
	ringAwaited = "?" // somebody waits for it: the owner looks at it, and rings ringRested
	ringRested  = "." // its turn has ended: those that wait look at it
)

// ring wakes the other processes, if there is a bell. Nobody calls it with a lock.
func (c *Coordinator) ring(what, id string) {
	if c.options.Bell != nil {
		c.options.Bell.Ring(what + id)
	}
}

// hear listens to the bell until stop is called. Who listens has one ear in common.
func (c *Coordinator) hear() (stop func()) {
	if c.options.Bell == nil {
		return func() {}
	}
	c.ear.Lock()
	defer c.ear.Unlock()
	if c.hearing++; c.hearing == 1 {
		c.deafen = c.options.Bell.Listen(c.heard)
	}
	return func() {
		c.ear.Lock()
		defer c.ear.Unlock()
		if c.hearing--; c.hearing == 0 {
			c.deafen()
		}
	}
}

// heard takes a ring; an empty name is any.
func (c *Coordinator) heard(name string) {
	if len(name) < 2 {
		c.missed()
		return
	}
	what, id := name[:1], name[1:]
	if what == ringRested {
		c.tell(id, nil)
		return
	}
	switch s := c.serverOf(id); {
	case s == nil:
	case !s.ready.Load():
		signal(s.due) // it asks once it has taken over
	case c.room() > 0:
		s.hail(id, what)
	}
}

// missed has everything looked at that a ring could be for.
func (c *Coordinator) missed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiters := range c.waiters {
		for _, w := range waiters {
			signal(w.wake)
		}
	}
	if len(c.servers) > 0 {
		c.scouted = time.Time{}
		signal(c.rescout)
	}
}

// hail has a transaction driven for another process.
func (s *server) hail(id, what string) {
	if t := s.take(id); t != nil {
		t.due = true
		t.awaited.Store(what == ringAwaited)
		s.launch(t)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.active[id]; t != nil && what == ringAwaited {
		t.awaited.Store(true)
	} else if t != nil {
		t.outrun.Store(true)
		signal(t.wake)
	}
}

// begun notes a transaction that was begun here. Its owner, if that is another process, looks
// at it.
func (c *Coordinator) begun(id string) {
	c.mu.Lock()
	what, elsewhere := ringChanged, c.servers[c.journal.ShardOf(id)] == nil
	for _, w := range c.waiters[id] {
		w.begun, w.asked, what = true, elsewhere, ringAwaited
	}
	c.mu.Unlock()
	if elsewhere {
		c.ring(what, id)
	}
}
