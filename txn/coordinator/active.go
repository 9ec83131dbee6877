package coordinator

import "github.com/interlock-dev/interlock/driver"

// room is how much more may be taken up that is due.
func (c *Coordinator) room() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.options.Held-c.held)
}

// take marks a transaction as driven here; nil if it is already.
func (s *server) take(id string) *Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.yielding.Load() || s.active[id] != nil {
		return nil
	}
	t := &Turn{server: s, id: id, wake: make(chan struct{}, 1)}
	s.active[id] = t
	s.coordinator.count(1)
	return t
}

// release ends a turn, unless somebody has appended or has found the transaction while
// it came to its rest: then it is false, and the turn goes on.
func (s *server) release(t *Turn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.outrun.Load() && !s.closed && !s.yielding.Load() && s.ctx.Err() == nil {
		return false
	}
	s.forget(t)
	return true
}

// drop ends a turn whatever there is to do.
func (s *server) drop(t *Turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(t)
}

// forget is for who has the lock.
func (s *server) forget(t *Turn) {
	if delete(s.active, t.id); len(s.active) == 0 {
		signal(s.idle)
	}
	s.coordinator.count(-1)
}

func (c *Coordinator) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held += n
}

// start drives a transaction once there is a slot: so no more of them are read than
// can be driven. One that is driven already is woken if somebody else has appended
// to it. It is false when the server ends.
func (s *server) start(head driver.Head, due bool) bool {
	if !s.coordinator.knows(head.Type) {
		s.leave(head, due)
		return s.ctx.Err() == nil
	}
	t := s.take(head.Transaction)
	if t == nil {
		s.moved(head)
		return s.ctx.Err() == nil
	}
	if !s.enter() {
		s.release(t)
		return false
	}
	t.due, t.inside = due, true
	return s.launch(t)
}

// launch runs a turn that was taken.
func (s *server) launch(t *Turn) bool {
	s.mu.Lock()
	if s.closed { // it is left to the next owner
		s.mu.Unlock()
		t.leave()
		s.release(t)
		return false
	}
	s.running++ // close waits for it
	go s.run(t)
	s.mu.Unlock()
	return true
}

// moved wakes the turn of a transaction that is beyond where the turn left it.
func (s *server) moved(head driver.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.active[head.Transaction]; t != nil && t.position.Load() < head.Position {
		t.outrun.Store(true)
		signal(t.wake)
	}
}

// nudge wakes the turn of a transaction, or begins one.
func (s *server) nudge(id string) {
	t := s.take(id)
	if t != nil {
		t.due = true
		s.launch(t)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.active[id]; t != nil {
		t.outrun.Store(true)
		signal(t.wake)
	}
}
