package coordinator

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/internal/hints"
)

// Coordinators of different processes wake each other by Options.Notifier. A name that they send
// is one of these, the number of a shard, a space and the id of a transaction. A process that misses
// a notification polls.
const (
	noteChanged = "!" // it was begun or appended to: the owner drives it
	noteAwaited = "?" // a process waits for it: the owner drives it, and sends noteRested
	noteRested  = "." // its turn has ended: waiters look at it
)

// tell notifies the owner of a shard: this process, or another one if there is a notifier. The caller
// holds no lock.
func (c *Coordinator) tell(shard int, what, id string) {
	if s := c.server(shard); s != nil {
		s.notified(id, what)
		return
	}
	c.notify(shard, what, id)
}

// notified drives a transaction, unless the take-over of the shard does, which counts that it was
// taken over.
func (s *server) notified(id, what string) {
	if s.ready.Load() {
		s.driveFor(id, what)
	} else {
		hints.Signal(s.due) // it claims due transactions after the take-over
	}
}

// notify notifies the other processes, if there is a notifier. The caller holds no lock.
func (c *Coordinator) notify(shard int, what, id string) {
	if c.options.Notifier != nil {
		c.options.Notifier.Notify(what + strconv.Itoa(shard) + " " + id)
	}
}

// listen listens to the notifier until stop is called. All callers share one registration.
func (c *Coordinator) listen() (stop func()) {
	if c.options.Notifier == nil {
		return func() {}
	}
	c.listenMu.Lock()
	defer c.listenMu.Unlock()
	if c.listeners++; c.listeners == 1 {
		c.stopListening = c.options.Notifier.Listen(c.receive)
	}
	return sync.OnceFunc(func() {
		c.listenMu.Lock()
		defer c.listenMu.Unlock()
		if c.listeners--; c.listeners == 0 {
			c.stopListening()
		}
	})
}

// receive handles a notification. An empty name may stand for any.
func (c *Coordinator) receive(name string) {
	to, id, found := strings.Cut(name, " ")
	if !found || to == "" {
		c.wakeAll()
		return
	}
	what := to[:1]
	if what == noteRested {
		c.wakeWaiters(id, nil)
		return
	}
	shard, err := strconv.Atoi(to[1:])
	switch s := c.server(shard); {
	case s == nil || err != nil:
	case c.room() > 0 || !s.ready.Load():
		s.notified(id, what)
	}
}

// wakeAll wakes every waiter, and polls.
func (c *Coordinator) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiters := range c.waiters {
		for _, w := range waiters {
			hints.Signal(w.wake)
		}
	}
	c.requestPoll()
}

// requestPoll makes a server poll at once. The caller holds the lock.
func (c *Coordinator) requestPoll() {
	if len(c.servers) > 0 {
		c.lastPolled = time.Time{}
		hints.Signal(c.pollNow)
	}
}

// drives reports whether a transaction has a turn.
func (s *server) drives(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id] != nil
}

// driveFor drives a transaction that was changed, or for which another process waits.
func (s *server) driveFor(id, what string) {
	for !s.noteTurn(id, what) { // its turn has ended since take, or there is none
		if t := s.take(id); t != nil {
			t.due = true
			t.awaited.Store(what == noteAwaited)
			t.conflicted.Store(what == noteChanged)
			s.launch(t)
			return
		}
	}
}

// noteTurn tells the turn of a transaction what was notified. It returns false if the transaction has
// none and can be driven.
func (s *server) noteTurn(id, what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.active[id]
	switch {
	case t == nil:
		return s.closed || s.yielding.Load()
	case what == noteAwaited:
		t.awaited.Store(true)
	default:
		t.conflicted.Store(true)
		hints.Signal(t.wake)
	}
	return true
}

// noteBegun records that a transaction was begun here, and returns the notification for its owner.
func (c *Coordinator) noteBegun(id string) (what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what = noteChanged
	for _, w := range c.waiters[id] {
		w.begun, w.asked, what = true, true, noteAwaited
	}
	return what
}
