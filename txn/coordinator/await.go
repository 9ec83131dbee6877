package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Waiter waits for one transaction, from [Coordinator.Watch] to Stop. It is for one
// goroutine.
type Waiter struct {
	coordinator *Coordinator
	id          string
	wake        chan struct{} // holds one
	stop        func()        // stops hearing the notifier

	// The coordinator's mu guards these.
	begun      bool // the transaction was begun here since, so that nobody need look at it at once
	asked      bool // its owner is another process, and knows that somebody waits
	conclusion any  // of the last turn that ended here
}

// Watch returns a waiter for a transaction, which misses nothing from now on. Call its Stop when
// done.
func (c *Coordinator) Watch(id string) *Waiter {
	w := &Waiter{coordinator: c, id: id, wake: make(chan struct{}, 1), stop: c.hear()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiters[id] = append(c.waiters[id], w)
	return w
}

// Stop ends the waiting.
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

// Wait blocks until done says true, which looks at the transaction, whichever process drives
// it. It is called at once, unless the transaction was begun here since Watch, then whenever
// a turn of the transaction ends, and every Options.Poll. concluded is what the turn left by
// [Turn.Conclude], or nil. A Definite error or a Bug of done is returned; after others it is
// called again. When ctx ends the transaction goes on, and the error is Uncertain.
func (w *Waiter) Wait(ctx context.Context, done func(ctx context.Context, concluded any) (bool, error)) error {
	pause := w.coordinator.soon()
	for look := w.looks(); ; look = true {
		if look {
			is, err := done(ctx, w.concluded())
			if err == nil && is {
				return nil
			}
			if kind := interlock.Kind(err); err != nil && ctx.Err() == nil && (kind == interlock.Definite || kind == interlock.Bug) {
				return err
			}
		}
		wait := w.coordinator.options.Poll
		if w.ask() {
			wait, pause = pause, min(2*pause, wait)
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

// looks reports whether to look at once.
func (w *Waiter) looks() bool {
	c := w.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	return !w.begun || w.conclusion != nil
}

// ask has the owner look at the transaction once, if that is another process, and reports
// whether it is.
func (w *Waiter) ask() (elsewhere bool) {
	c := w.coordinator
	c.mu.Lock()
	asked := w.asked
	elsewhere = c.servers[c.journal.ShardOf(w.id)] == nil
	w.asked = elsewhere
	c.mu.Unlock()
	if elsewhere && !asked {
		c.notify(noteAwaited, w.id)
	}
	return elsewhere
}

// shortestPoll is the first pause of a process that no notifier wakes, after it found something
// that another process has begun, or before it looks again at what another process drives.
// Pauses double up to Options.Poll.
const shortestPoll = 20 * time.Millisecond

// soon is the first pause.
func (c *Coordinator) soon() time.Duration {
	if c.options.Notifier != nil {
		return c.options.Poll
	}
	return min(shortestPoll, c.options.Poll)
}

// concluded takes the conclusion.
func (w *Waiter) concluded() any {
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

// tell wakes those who wait for a transaction.
func (c *Coordinator) tell(id string, conclusion any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waiters[id] {
		if conclusion != nil {
			w.conclusion = conclusion
		}
		signal(w.wake)
	}
}

// signal leaves a sign in a channel that holds one.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Coordinators of different processes wake each other by Options.Notifier. A name that they send
// is one of these and the id of a transaction. A process that misses a notification polls.
const (
	noteChanged = "!" // it was begun, or somebody has appended: the owner looks at it
	noteAwaited = "?" // somebody waits for it: the owner looks at it, and notifies noteRested
	noteRested  = "." // its turn has ended: those that wait look at it
)

// notify wakes the other processes, if there is a notifier. Nobody calls it with a lock.
func (c *Coordinator) notify(what, id string) {
	if c.options.Notifier != nil {
		c.options.Notifier.Notify(what + id)
	}
}

// hear listens to the notifier until stop is called. Who listens has one ear in common.
func (c *Coordinator) hear() (stop func()) {
	if c.options.Notifier == nil {
		return func() {}
	}
	c.ear.Lock()
	defer c.ear.Unlock()
	if c.hearing++; c.hearing == 1 {
		c.deafen = c.options.Notifier.Listen(c.heard)
	}
	return func() {
		c.ear.Lock()
		defer c.ear.Unlock()
		if c.hearing--; c.hearing == 0 {
			c.deafen()
		}
	}
}

// heard takes a notification; an empty name is any.
func (c *Coordinator) heard(name string) {
	if len(name) < 2 {
		c.missed()
		return
	}
	what, id := name[:1], name[1:]
	if what == noteRested {
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

// missed has everything looked at that a notification could be for.
func (c *Coordinator) missed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, waiters := range c.waiters {
		for _, w := range waiters {
			signal(w.wake)
		}
	}
	c.scoutNow()
}

// scoutNow has a server ask for all. The caller holds the lock.
func (c *Coordinator) scoutNow() {
	if len(c.servers) > 0 {
		c.scouted = time.Time{}
		signal(c.rescout)
	}
}

// hail has a transaction driven for another process.
func (s *server) hail(id, what string) {
	if t := s.take(id); t != nil {
		t.due = true
		t.awaited.Store(what == noteAwaited)
		s.launch(t)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.active[id]; t != nil && what == noteAwaited {
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
	what, elsewhere := noteChanged, c.servers[c.journal.ShardOf(id)] == nil
	for _, w := range c.waiters[id] {
		w.begun, w.asked, what = true, elsewhere, noteAwaited
	}
	c.mu.Unlock()
	if elsewhere {
		c.notify(what, id)
	}
}
