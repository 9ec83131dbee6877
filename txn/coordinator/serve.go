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
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// server drives the transactions of one shard.
type server struct {
	coordinator  *Coordinator
	shard        *journal.Shard
	claim        interlock.Claim
	ctx          context.Context // ends with that of Serve, with the claim, or by fail
	fail         context.CancelCauseFunc
	releaseClaim func()        // detaches from the claim's context
	due          chan struct{} // holds one: a transaction is due
	idle         chan struct{} // holds one: no turn is active
	ready        atomic.Bool   // the take-over has ended
	yielding     atomic.Bool   // no turn starts, and active ones stop soon
	since        time.Time     // start of serving, or of the last failed yield; guarded by the coordinator's mu
	yieldDue     time.Time     // when to yield the shard; guarded by the coordinator's mu

	unanswered bool // the answer to a claim of due transactions was lost; used by serve alone

	mu        sync.Mutex
	active    map[string]*Turn // by id, reserved ones included
	closed    bool             // nothing is added to work
	abandoned bool             // appends are rejected

	work sync.WaitGroup // turns and background jobs
}

func newServer(ctx context.Context, c *Coordinator, claim interlock.Claim, shard *journal.Shard) *server {
	s := &server{coordinator: c, shard: shard, claim: claim, due: make(chan struct{}, 1), idle: make(chan struct{}, 1), since: c.options.Now(), active: map[string]*Turn{}}
	ctx, s.releaseClaim = join.Context(ctx, claim.Context())
	s.ctx, s.fail = context.WithCancelCause(ctx)
	return s
}

// serve takes over unfinished transactions, then drives those that become due.
func (s *server) serve() error {
	s.background()
	defer s.coordinator.listen()()
	err := s.takeOver()
	s.ready.Store(err == nil)
	for err == nil && s.ctx.Err() == nil {
		if err = s.watch(); err == nil {
			err = s.yieldShard()
		}
	}
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// watch waits until a transaction is due or a poll is.
func (s *server) watch() error {
	timer := time.NewTimer(s.coordinator.options.Poll)
	defer timer.Stop()
	work := s.pollShards
	select {
	case <-s.due:
		work = s.claimDue
	case <-s.coordinator.pollNow:
	case <-timer.C:
	case <-s.ctx.Done():
		return nil
	}
	if err := s.reclaim(); err != nil {
		return err
	}
	return work()
}

// close waits until no turn is running, at most for Options.Drain. Turns that run longer append
// nothing more.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.fail(interlock.ErrClosed)
	drained := make(chan struct{})
	go func() { s.work.Wait(); close(drained) }() // ends with the last turn, also a hung one
	drain := s.coordinator.options.Drain
	timer := time.NewTimer(drain)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
		s.abandon(drain)
	}
	s.releaseClaim()
}

// abandon reports the turns that have not returned, and rejects their later appends.
func (s *server) abandon(after time.Duration) {
	s.mu.Lock()
	s.abandoned = true
	hung := slices.Sorted(maps.Keys(s.active))
	s.mu.Unlock()
	for _, id := range hung {
		Emit(s.coordinator.options.Hooks.Hung, observe.CoordinatorHung{Transaction: id, Shard: s.shard.Number(), After: after})
	}
}

// checkOpen returns an error if the shard was released while the turn that appends was running.
func (s *server) checkOpen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abandoned {
		return &interlock.Error{Op: "append", Name: driver.ShardName(s.shard.Number()), Kind: interlock.Definite, Err: interlock.ErrClosed}
	}
	return nil
}

// takeOver drives unfinished transactions, as far as there is room. It retries while the store is
// not available.
func (s *server) takeOver() error {
	for {
		due, err := s.unfinished()
		switch {
		case err == nil && due:
			return s.claimDue()
		case err == nil || s.permanent(err) != nil || !backoff.Sleep(s.ctx, s.coordinator.options.Poll):
			return err
		}
	}
}

// unfinished drives transactions that a former owner may have driven. Due and unclaimed ones are left
// to claimDue, whose claim shows the next owner that they were driven.
func (s *server) unfinished() (due bool, err error) {
	now := s.coordinator.options.Now()
	for head, err := range s.shard.Unfinished(s.ctx) {
		switch {
		case err != nil:
			return due, err
		case !head.Claimed && !head.Due.After(now):
			due = true
		case s.coordinator.room() == 0 || !s.start(head, false):
			return due, nil // others are due when their former owner's claim ends
		}
	}
	return due, nil
}

// claimDue claims and drives due transactions, as far as there is room.
func (s *server) claimDue() error {
	for room := s.coordinator.room(); room > 0; room = s.coordinator.room() {
		now, most := s.coordinator.options.Now(), min(room, 100)
		heads, err := s.shard.Claim(s.ctx, now, now.Add(s.coordinator.options.Recheck), most)
		if err != nil {
			s.unanswered = s.unanswered || interlock.Kind(err) == interlock.Uncertain
			return s.permanent(err)
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

// reclaim drives the transactions that a claim without an answer may have claimed, as far as there is
// room.
func (s *server) reclaim() error {
	if !s.unanswered {
		return nil
	}
	for head, err := range s.shard.Unfinished(s.ctx) {
		if err != nil {
			return s.permanent(err)
		}
		if head.Claimed && (s.coordinator.room() == 0 || !s.start(head, true)) {
			break // others are due after Options.Recheck
		}
	}
	s.unanswered = false
	return nil
}

// checkClaim returns why no call may be made any more. If the process was stopped for a time, the
// claim can have expired although its context has not ended.
func (s *server) checkClaim() error {
	if s.ctx.Err() == nil && !s.claim.Valid() {
		s.fail(interlock.ErrExpired)
	}
	return context.Cause(s.ctx)
}

// failed reports a failure, unless the server is ending.
func (s *server) failed(id string, err error) {
	if s.ctx.Err() == nil {
		Emit(s.coordinator.options.Hooks.Failed, observe.CoordinatorFailed{Transaction: id, Shard: s.shard.Number(), Err: err})
	}
}

// room returns how many more due transactions may be started.
func (c *Coordinator) room() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.options.Held-c.activeTurns)
}

// start drives a transaction once there is a slot, so that no more are read than can be driven. If the
// transaction has a turn and another writer has appended, start wakes the turn. It returns false when
// the server ends.
func (s *server) start(head driver.Head, due bool) bool {
	if !s.coordinator.knows(head.Type) {
		s.reportForeign(head, due)
		return s.ctx.Err() == nil
	}
	t := s.take(head.Transaction)
	if t == nil {
		s.wakeIfBehind(head)
		return s.ctx.Err() == nil
	}
	if t.due = due; !t.acquireSlot() {
		s.release(t)
		return false
	}
	return s.launch(t)
}

// wakeIfBehind wakes the turn of a transaction with records that the turn has not read.
func (s *server) wakeIfBehind(head driver.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.active[head.Transaction]; t != nil && t.position.Load() < head.Position {
		t.conflicted.Store(true)
		hints.Signal(t.wake)
	}
}

// One request for each Options.Poll asks the store which shards have due transactions. The first
// server whose timer fires sends it, and signals the servers of the shards in the answer.

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

// pollShards asks for the due shards of all servers, unless one of them did within a poll.
func (s *server) pollShards() error {
	c := s.coordinator
	now := c.options.Now()
	shards := c.shardsToPoll(now)
	if shards == nil {
		return nil
	}
	due, err := c.journal.DueShards(s.ctx, shards, now)
	if err != nil {
		return s.permanent(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, number := range due {
		if other := c.servers[number]; other != nil {
			hints.Signal(other.due)
		}
	}
	c.schedulePoll(len(due) > 0)
	return nil
}

// schedulePoll schedules a poll before the regular one, if recent polls found transactions and there is
// no notifier. The caller holds the lock.
func (c *Coordinator) schedulePoll(found bool) {
	if c.nextPoll *= 2; found {
		c.nextPoll = c.firstPause()
	}
	if c.nextPoll == 0 || c.nextPoll >= c.options.Poll {
		c.nextPoll = 0
		return
	}
	if c.earlyPoll != nil { // also after a poll that overlapped another one
		c.earlyPoll.Reset(c.nextPoll)
		return
	}
	c.earlyPoll = time.AfterFunc(c.nextPoll, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requestPoll()
	})
}

// shardsToPoll returns the shards to ask for, or nil if it is too early.
func (c *Coordinator) shardsToPoll(now time.Time) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since := now.Sub(c.lastPolled); since >= 0 && since < c.options.Poll { // below zero the clock was set back
		return nil
	}
	c.lastPolled = now
	return slices.Sorted(maps.Keys(c.servers))
}

// permanent reports a failure of the store. It returns the error if a retry cannot help, else nil.
func (s *server) permanent(err error) error {
	s.failed("", err)
	if s.ctx.Err() != nil || ownershipLost(err) || interlock.Kind(err) == interlock.Bug {
		return err
	}
	return nil
}
