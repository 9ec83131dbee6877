package coordinator

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Yielder is a claim that can be given to another process: that of a partition of
// claim/partition.
type Yielder interface {
	interlock.Claim
	// Contended reports whether another process takes part. It does not block.
	Contended() bool
	// Yield asks that another process have the claim. If one takes it the context of Serve
	// ends, soon after Yield has returned. Each process must have its turn.
	Yield(ctx context.Context) error
}

// mostGiven bounds how long a shard is kept: Options.Yield doubled so often.
const mostGiven = 6

// errYielding is why a transaction is left to the next owner of the shard.
var errYielding = &interlock.Error{Op: "drive", Kind: interlock.Retryable, Err: errors.New("its shard is about to be given to another process")}

// errKept is why a shard stays here.
var errKept = errors.New("no other process has taken it")

// hold is how long a shard is kept for which a transaction was given away so often.
func (c *Coordinator) hold(given int) time.Duration { return max(0, c.options.Yield) << given }

// offerAt has the shard given away after it was kept for so long. It is for who has the
// coordinator's lock.
func (s *server) offerAt(hold time.Duration) {
	at := s.since.Add(hold)
	if s.coordinator.options.Yield > 0 && (s.offerDue.IsZero() || at.Before(s.offerDue)) {
		s.offerDue = at
	}
}

// offer gives the shard to another process if it is time to: something is due here that
// this process does not know. What is driven comes to its rest first; what is under way for
// too long keeps the shard here until the next time.
func (s *server) offer() error {
	y, ok := s.claim.(Yielder)
	if !s.offering() || !ok || !y.Contended() {
		return nil
	}
	hold := s.given()
	patience := max(hold, s.coordinator.options.Drain)
	s.settle()
	var err error
	if s.rested(patience) {
		if err = y.Yield(s.ctx); err == nil && s.sleep(patience) {
			err = errKept
		}
	}
	if s.ctx.Err() != nil {
		return nil
	}
	if err != nil {
		s.failed("", failure.About("yield", driver.ShardName(s.shard.Number()), err))
	}
	s.keep()
	return s.takeOver()
}

// keep goes on with a shard that was not given away.
func (s *server) keep() {
	c := s.coordinator
	c.mu.Lock()
	s.since = c.options.Now()
	c.mu.Unlock()
	s.mu.Lock()
	s.yielding.Store(false)
	s.mu.Unlock()
}

// offering reports whether it is time.
func (s *server) offering() bool {
	c := s.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.offerDue.IsZero() || c.options.Now().Before(s.offerDue) {
		return false
	}
	s.offerDue = time.Time{} // set again by what is due then
	return true
}

// given counts that the shard is given away for what was found in it since it is kept, and
// says how long it is kept for the one of them that it was given away for least often.
func (s *server) given() time.Duration {
	c := s.coordinator
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prune()
	least := mostGiven
	for id, f := range c.foreigners {
		if f.shard == s.shard.Number() && !f.seen.Before(s.since) {
			least = min(least, f.given)
			f.given = min(f.given+1, mostGiven)
			c.foreigners[id] = f
		}
	}
	return c.hold(least)
}

// settle takes nothing up any more, and has what is driven come to its rest; idle is
// signalled when nothing is.
func (s *server) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.yielding.Store(true)
	for _, t := range s.active {
		signal(t.wake)
	}
	select {
	case <-s.idle:
	default:
	}
	if len(s.active) == 0 {
		signal(s.idle)
	}
}

// rested reports whether nothing is driven any more, and waits for that.
func (s *server) rested(longest time.Duration) bool {
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
