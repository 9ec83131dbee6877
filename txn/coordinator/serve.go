package coordinator

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// server drives the transactions of a shard.
type server struct {
	coordinator *Coordinator
	shard       *journal.Shard
	claim       interlock.Claim
	ctx         context.Context // ends with that of Serve, with the claim, or by fail
	fail        context.CancelCauseFunc
	let         func()        // lets go of the claim's context
	due         chan struct{} // holds one: something is due
	idle        chan struct{} // holds one: nothing is driven
	ready       atomic.Bool   // what a former owner left is taken over
	yielding    atomic.Bool   // nothing is taken up, and what is driven comes to its rest
	since       time.Time     // it serves, or could not give the shard away; the coordinator's mu guards it
	offerDue    time.Time     // when to give it away; the coordinator's mu guards it

	mu      sync.Mutex
	active  map[string]*Turn // what is driven, or about to be
	running int              // turns that have a goroutine
	closed  bool
	drained chan struct{} // closed once it is, and nothing is running
	over    bool          // nothing is appended any more
}

func newServer(ctx context.Context, c *Coordinator, claim interlock.Claim, shard *journal.Shard) *server {
	s := &server{coordinator: c, shard: shard, claim: claim, due: make(chan struct{}, 1), idle: make(chan struct{}, 1), since: c.options.Now(), drained: make(chan struct{}), active: map[string]*Turn{}}
	ctx, s.let = join.Context(ctx, claim.Context())
	s.ctx, s.fail = context.WithCancelCause(ctx)
	return s
}

// serve takes over what is unfinished, then what becomes due.
func (s *server) serve() error {
	s.background()
	defer s.coordinator.hear()()
	err := s.takeOver()
	s.ready.Store(err == nil)
	for err == nil && s.ctx.Err() == nil {
		if err = s.watch(); err == nil {
			err = s.offer()
		}
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// watch waits until something is due, or it is time to ask whether anything is.
func (s *server) watch() error {
	timer := time.NewTimer(s.coordinator.options.Poll)
	defer timer.Stop()
	select {
	case <-s.due:
		return s.patrol()
	case <-s.coordinator.rescout:
		return s.scout()
	case <-timer.C:
		return s.scout()
	case <-s.ctx.Done():
		return nil
	}
}

// close waits until nothing is driven any more, or for as long as Options.Drain. What is
// driven still then appends nothing.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	if s.running == 0 {
		close(s.drained)
	}
	s.mu.Unlock()
	s.fail(interlock.ErrClosed)
	drain := s.coordinator.options.Drain
	timer := time.NewTimer(drain)
	defer timer.Stop()
	select {
	case <-s.drained:
	case <-timer.C:
		s.abandon(drain)
	}
	s.let()
}

// abandon reports what does not return, and lets it append nothing.
func (s *server) abandon(after time.Duration) {
	s.mu.Lock()
	s.over = true
	hung := slices.Sorted(maps.Keys(s.active))
	s.mu.Unlock()
	if f := s.coordinator.options.Hooks.Hung; f != nil {
		for _, id := range hung {
			f(observe.CoordinatorHung{Transaction: id, Shard: s.shard.Number(), After: after})
		}
	}
}

// ended counts off what was running.
func (s *server) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 && s.closed {
		close(s.drained)
	}
}

// run runs a turn, which was counted as running.
func (s *server) run(t *Turn) {
	defer s.ended()
	t.run()
}

// released says that nothing may be appended any more, since the shard was released without
// the turn that wants to.
func (s *server) released() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return &interlock.Error{Op: "append", Name: driver.ShardName(s.shard.Number()), Kind: interlock.Definite, Err: interlock.ErrClosed}
	}
	return nil
}

// takeOver drives all that has not ended, as far as there is room. A store that cannot answer now is asked
// again after a while.
func (s *server) takeOver() error {
	for {
		due, err := s.unfinished()
		switch {
		case err == nil && due:
			return s.patrol()
		case err == nil || s.lasting(err) != nil || !s.sleep(s.coordinator.options.Poll):
			return err
		}
	}
}

// unfinished drives what a former owner may have had in hand. Whatever is due without
// anybody's claim is left to a claim of this owner, by which the next one can tell that
// it was in hand.
func (s *server) unfinished() (due bool, err error) {
	now := s.coordinator.options.Now()
	for head, err := range s.shard.Unfinished(s.ctx) {
		switch {
		case err != nil:
			return due, err
		case !head.Claimed && !head.Due.After(now):
			due = true
		case s.coordinator.room() == 0 || !s.start(head, false):
			return due, nil // what is left is due at last when its former owner's claim of it ends
		}
	}
	return due, nil
}

// patrol drives what is due, as far as there is room.
func (s *server) patrol() error {
	for room := s.coordinator.room(); room > 0; room = s.coordinator.room() {
		now, most := s.coordinator.options.Now(), min(room, 100)
		heads, err := s.shard.Claim(s.ctx, now, now.Add(s.coordinator.options.Recheck), most)
		if err != nil {
			return s.lasting(err)
		}
		for _, head := range heads {
			if !s.start(head, true) {
				return nil
			}
		}
		if len(heads) < most {
			return nil
		}
	}
	return nil
}

// holds says why nothing may be called any more. After a stop of the process this
// can be known before the contexts have ended.
func (s *server) holds() error {
	if s.ctx.Err() == nil && !s.claim.Valid() {
		s.fail(interlock.ErrExpired)
	}
	return context.Cause(s.ctx)
}

// enter waits for a slot; its counterpart is Turn.leave.
func (s *server) enter() bool {
	select {
	case s.coordinator.slots <- struct{}{}:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// sleep waits, unless the server ends.
func (s *server) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return s.ctx.Err() == nil
	case <-s.ctx.Done():
		return false
	}
}

// failed tells of what went wrong, unless it did because the server ends.
func (s *server) failed(id string, err error) {
	if s.ctx.Err() == nil {
		s.coordinator.failed(id, s.shard.Number(), err)
	}
}

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

// A process with many shards asks its store once in Options.Poll for all of them which
// have something that is due, and then those only: whichever of their servers looks at
// its clock first asks, and passes the answer to the others.

// scout asks for all servers, unless one of them has done so within a poll.
func (s *server) scout() error {
	c := s.coordinator
	now := c.options.Now()
	shards := c.scouting(now)
	if shards == nil {
		return nil
	}
	due, err := c.journal.DueShards(s.ctx, shards, now)
	if err != nil {
		return s.lasting(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, number := range due {
		if other := c.servers[number]; other != nil {
			signal(other.due)
		}
	}
	c.scoutSoon(len(due) > 0)
	return nil
}

// scoutSoon has a server ask again before the next poll, if something was found lately and no
// notifier wakes this process. The caller holds the lock.
func (c *Coordinator) scoutSoon(found bool) {
	if c.pause *= 2; found {
		c.pause = c.soon()
	}
	if c.pause == 0 || c.pause >= c.options.Poll {
		c.pause = 0
		return
	}
	time.AfterFunc(c.pause, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.scoutNow()
	})
}

// scouting is the shards to ask for now, if it is time.
func (c *Coordinator) scouting(now time.Time) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := now.Sub(c.scouted); since >= 0 && since < c.options.Poll { // below zero the clock was set back
		return nil
	}
	c.scouted = now
	return slices.Sorted(maps.Keys(c.servers))
}

// lasting tells of a failure of the store, and is that failure if asking again is of no
// use, else nil.
func (s *server) lasting(err error) error {
	s.failed("", err)
	if s.ctx.Err() != nil || lost(err) || interlock.Kind(err) == interlock.Bug {
		return err
	}
	return nil
}
