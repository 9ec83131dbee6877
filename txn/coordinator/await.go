package coordinator

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/hints"
)

// A Waiter waits for one transaction, from [Coordinator.Watch] to Stop. It must be used by one
// goroutine.
type Waiter struct {
	coordinator *Coordinator
	id          string
	wake        chan struct{} // holds one
	stop        func()        // stops listening to the notifier

	// The coordinator's mu guards these.
	begun      bool // the transaction was begun here since Watch, so that the first check can wait
	asked      bool // its owner knows that this process waits
	conclusion any  // of the last turn that ended here
}

// Watch returns a waiter for a transaction, which misses no later change. Call Stop when done.
func (c *Coordinator) Watch(id string) *Waiter {
	w := &Waiter{coordinator: c, id: id, wake: make(chan struct{}, 1), stop: c.listen()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[id] = append(c.waiters[id], w)
	return w
}

// Stop ends the waiting. It may be called again.
func (w *Waiter) Stop() {
	c := w.coordinator
	w.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	left := slices.DeleteFunc(c.waiters[w.id], func(other *Waiter) bool { return other == w })
	if c.waiters[w.id] = left; len(left) == 0 {
		delete(c.waiters, w.id)
	}
}

// Wait blocks until done, which reads the transaction, returns true, whichever process drives
// it. Wait calls done at once, unless the transaction was begun here since Watch, then after each
// turn of the transaction, and every Options.Poll. concluded is the value of [Turn.Conclude], or
// nil. Wait returns a Definite error or a Bug of done; after others it calls done again. If ctx
// ends the transaction continues, and the error is Uncertain.
func (w *Waiter) Wait(ctx context.Context, done func(ctx context.Context, concluded any) (bool, error)) error {
	pause := w.coordinator.firstPause()
	for look := w.checkFirst(); ; look = true {
		if look {
			ended, err := done(ctx, w.takeConclusion())
			if err == nil && ended {
				return nil
			}
			if kind := interlock.Kind(err); err != nil && ctx.Err() == nil && (kind == interlock.Definite || kind == interlock.Bug) {
				return err
			}
		}
		wait := w.coordinator.options.Poll
		if w.askOwner() {
			wait, pause = pause, min(pause, wait/2)*2
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &interlock.Error{Op: "wait for transaction", Name: w.id, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		}
		timer.Stop()
	}
}

// checkFirst reports whether to call done at once.
func (w *Waiter) checkFirst() bool {
	c := w.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	return !w.begun || w.conclusion != nil
}

// askOwner notifies the owner once that this process waits, unless the transaction is driven here. It
// reports whether it is not.
func (w *Waiter) askOwner() (elsewhere bool) {
	c := w.coordinator
	shard := c.shardOf(w.id)
	if s := c.server(shard); s != nil && s.drives(w.id) {
		return false
	}
	c.mu.Lock()
	asked := w.asked
	w.asked = true
	c.mu.Unlock()
	if !asked {
		c.tell(shard, noteAwaited, w.id)
	}
	return true
}

// shortestPoll is the first pause of a process without a notifier. It is used after a poll that
// found a transaction of another process, and during the wait for such a transaction. Pauses double
// up to Options.Poll.
const shortestPoll = 20 * time.Millisecond

// firstPause returns the first pause.
func (c *Coordinator) firstPause() time.Duration {
	if c.options.Notifier != nil {
		return c.options.Poll
	}
	return min(shortestPoll, c.options.Poll)
}

// takeConclusion returns the conclusion, and clears it.
func (w *Waiter) takeConclusion() any {
	c := w.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	concluded := w.conclusion
	w.conclusion = nil
	return concluded
}

// Await is [Waiter.Wait] of a new [Waiter], without conclusions.
func (c *Coordinator) Await(ctx context.Context, id string, done func(ctx context.Context) (bool, error)) error {
	w := c.Watch(id)
	defer w.Stop()
	return w.Wait(ctx, func(ctx context.Context, _ any) (bool, error) { return done(ctx) })
}

// wakeWaiters wakes the waiters of a transaction.
func (c *Coordinator) wakeWaiters(id string, conclusion any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters[id] {
		if conclusion != nil {
			w.conclusion = conclusion
		}
		hints.Signal(w.wake)
	}
}

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
