package coordinator

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/observe"
)

// A Yielder is a claim that can be given to another process, such as that of a partition of
// claim/partition.
type Yielder interface {
	interlock.Claim
	// Contended reports whether another process can take the claim. It does not block.
	Contended() bool
	// Yield offers the claim to another process. If one takes it the context of Serve ends
	// soon after Yield has returned. Each process must get a turn.
	Yield(ctx context.Context) error
}

// maxYields bounds the doublings of Options.Yield.
const maxYields = 6

// errYielding leaves a transaction to the next owner of the shard.
var errYielding = &interlock.Error{Op: "drive", Kind: interlock.Retryable, Err: errors.New("its shard is about to be given to another process")}

// errNotTaken means that the shard stays here.
var errNotTaken = errors.New("no other process has taken it")

// keepFor returns the time until the next yield, after a number of yields for a transaction.
func (c *Coordinator) keepFor(given int) time.Duration { return max(0, c.options.Yield) << given }

// scheduleYield schedules a yield of the shard after hold. The caller holds the coordinator's lock.
func (s *server) scheduleYield(hold time.Duration) {
	at := s.since.Add(hold)
	if s.coordinator.options.Yield > 0 && (s.yieldDue.IsZero() || at.Before(s.yieldDue)) {
		s.yieldDue = at
	}
}

// yieldShard yields the shard to another process, if a yield is due because of due transactions of
// unknown types. Active turns stop first. If one takes too long, the shard stays until the next yield.
func (s *server) yieldShard() error {
	y, ok := s.claim.(Yielder)
	if !s.yieldIsDue() || !ok || !y.Contended() {
		return nil
	}
	hold := s.countYield()
	patience := max(hold, s.coordinator.options.Drain)
	s.stopTurns()
	var err error
	if s.waitIdle(patience) {
		if err = y.Yield(s.ctx); err == nil && backoff.Sleep(s.ctx, patience) {
			err = errNotTaken
		}
	}
	if s.ctx.Err() != nil {
		return nil
	}
	if err != nil {
		s.failed("", failure.About("yield", driver.ShardName(s.shard.Number()), err))
	}
	s.resume()
	return s.takeOver()
}

// resume continues with a shard that was not taken.
func (s *server) resume() {
	c := s.coordinator
	c.mu.Lock()
	s.since = c.options.Now()
	c.mu.Unlock()
	s.mu.Lock()
	s.yielding.Store(false)
	s.mu.Unlock()
}

// yieldIsDue reports whether it is time to yield.
func (s *server) yieldIsDue() bool {
	c := s.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.yieldDue.IsZero() || c.options.Now().Before(s.yieldDue) {
		return false
	}
	s.yieldDue = time.Time{} // due transactions set it again
	return true
}

// countYield counts a yield for each foreign transaction found since the last one. It returns the time
// until the next yield, for the transaction with the fewest yields.
func (s *server) countYield() time.Duration {
	c := s.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prune()
	least := maxYields
	for id, f := range c.foreign {
		if f.shard == s.shard.Number() && !f.seen.Before(s.since) {
			least = min(least, f.yields)
			f.yields = min(f.yields+1, maxYields)
			c.foreign[id] = f
		}
	}
	return c.keepFor(least)
}

// stopTurns prevents new turns, and wakes the active ones so that they stop. idle is signalled when none
// is active.
func (s *server) stopTurns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.yielding.Store(true)
	for _, t := range s.active {
		hints.Signal(t.wake)
	}
	select {
	case <-s.idle:
	default:
	}
	if len(s.active) == 0 {
		hints.Signal(s.idle)
	}
}

// waitIdle waits until no turn is active.
func (s *server) waitIdle(longest time.Duration) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-s.idle:
		return s.ctx.Err() == nil
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return false
}

// A transaction of a type that this process does not know is left to an owner of the shard that
// knows it. It is not read, and only its due time changes; see yieldShard.

// ErrForeign means that a [Protocol] does not know the type of a transaction. It does not count as
// a failure.
var ErrForeign = errors.New("this process does not know transactions of this type")

// Selective is a [Protocol] that knows some types only. Transactions of other types are not read,
// take no room, and are reported by the hook Foreign.
type Selective interface {
	Protocol
	// Drives reports whether it knows a type, of the form protocol:name. The result must not
	// change.
	Drives(kind string) bool
}

// foreignTransaction is a transaction that this process cannot drive.
type foreignTransaction struct {
	kind     string
	shard    int
	position int64
	seen     time.Time
	yields   int // yields of its shard for it since its last append
}

// maxForeign bounds the counted transactions.
const maxForeign = 10_000

// knows reports whether this process drives a type.
func (c *Coordinator) knows(kind string) bool {
	p, err := c.protocol(kind)
	if err != nil {
		return false
	}
	s, selects := p.(Selective)
	return !selects || s.Drives(kind)
}

// reportForeign counts a transaction that this process cannot drive, and reports it. If it is due, a
// yield of the shard is scheduled.
func (s *server) reportForeign(head driver.Head, due bool) {
	c := s.coordinator
	c.mu.Lock()
	f, known := c.foreign[head.Transaction]
	switch {
	case !known && len(c.foreign) >= maxForeign:
		f.yields = maxYields
	case head.Position > f.position:
		f.yields = 0
	}
	f = foreignTransaction{head.Type, s.shard.Number(), head.Position, c.options.Now(), f.yields}
	if known || len(c.foreign) < maxForeign {
		c.foreign[head.Transaction] = f
	}
	if due {
		s.scheduleYield(c.keepFor(f.yields))
	}
	c.mu.Unlock()
	Emit(c.options.Hooks.Foreign, observe.CoordinatorForeign{Transaction: head.Transaction, Type: head.Type, Shard: f.shard, Given: f.yields})
}

// Foreign returns, by type, the number of unfinished transactions lately found in the shards
// served here whose type this process does not know. It is a gauge and counts up to 10,000. A
// type that stays in it for longer than a deployment takes needs a process that knows it. See
// Options.Yield for shards shared by processes with different types.
func (c *Coordinator) Foreign() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, before := map[string]int{}, c.options.Now().Add(-3*c.options.Recheck)
	c.prune()
	for _, f := range c.foreign {
		if !f.seen.Before(before) {
			counts[f.kind]++
		}
	}
	return counts
}

// prune forgets transactions not seen for so long that another process must have driven them. It waits
// longer if few are counted. The caller holds the lock.
func (c *Coordinator) prune() {
	turns := time.Duration(32)
	if len(c.foreign) > maxForeign/2 {
		turns = 4
	}
	before := c.options.Now().Add(-3 * c.options.Recheck)
	maps.DeleteFunc(c.foreign, func(_ string, f foreignTransaction) bool {
		return f.seen.Before(before.Add(-turns * c.keepFor(f.yields)))
	})
}
